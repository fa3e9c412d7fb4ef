"""The stand-in library for the programs beside this file: CPU memory counts as a device's, and records come when told.

Loaded once and for the whole process, so each program is a process of its own; "cpu" instead of a path loads nothing.
"torch", "kernel" and "either" take what reads devices without a library: torch's operators, a Python function that
launches a kernel, or that one until it fails; "triton" takes Triton's kernels, in its interpreter.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import torch

from nanscan import backends
from nanscan.backends import device as devices
from nanscan.backends import watching
from nanscan.events import Event

ALL = 0xFFFFFFFF


class Late:
    """What a test decides of the stand-in. See shim/late.cpp."""

    def __init__(self, path: str) -> None:
        self.core = backends.get().core
        devices.use(self.core, path, stand_in=True)
        self._library = ctypes.CDLL(path)
        self._library.nanscan_late_launches.restype = ctypes.c_uint64
        self._library.nanscan_late_release.argtypes = (ctypes.c_uint64, ctypes.c_uint32)

    def release(self, n: int = ALL, seed: int = 0) -> int:
        """Let up to n held records of every ring go, of streams that the seed picks; returns how many."""
        return self._library.nanscan_late_release(seed, n)

    def stream(self, n: int) -> None:
        """What the calling thread launches on."""
        self.core.set_stand_in_stream(n)

    @property
    def launches(self) -> int:
        return self._library.nanscan_late_launches()

    def fail(self, n: int) -> None:
        """The n-th launch from now fails."""
        self._library.nanscan_late_fail(n)

    def lose(self, n: int) -> None:
        """From the n-th launch from now on all fail, and what is held never comes."""
        self._library.nanscan_late_lose(n)

    def capture(self, stream: int, begin: bool) -> None:
        assert self._library.nanscan_standin_capture(ctypes.c_void_p(stream), int(begin)) == 0

    def replay(self, stream: int) -> None:
        assert self._library.nanscan_late_replay(ctypes.c_void_p(stream)) == 0


class WithoutLibrary(Late):
    """The same for csrc/hooks/torch_ring. A launch of the function may fail, as Triton's may."""

    def __init__(self, what: str) -> None:
        self.core = backends.get().core
        self.calls = 0  # of the function
        self._fails, self._lost = 0, False
        launch = None if what == "torch" else lambda *args: self._launch(*args)
        if what == "triton":
            from nanscan.triton_kernels.launch import launch_into as launch
        watching.use_stand_in(self.core, launch, only_kernel=what in ("kernel", "triton"))

    def _launch(self, part: torch.Tensor, row: torch.Tensor, dtype: int) -> None:
        self.calls += 1
        time.sleep(0)  # lets the GIL go
        if self._fails > 0 and not (self._lost and self._fails == 1):
            self._fails -= 1
            if self._fails == 0:
                raise RuntimeError("planted")
        elif self._lost:
            raise RuntimeError("planted")
        row.copy_(torch.frombuffer(bytearray(self.core.scan(part)), dtype=torch.int64))

    def release(self, n: int = ALL, seed: int = 0) -> int:
        return self.core.release_stand_in(n)

    @property
    def launches(self) -> int:
        return self.calls

    def fail(self, n: int) -> None:
        self._fails, self._lost = n, False

    def lose(self, n: int) -> None:
        self._fails, self._lost = n, True


def start() -> Late | None:
    """As every program begins: one thread, one seed, and what the first argument names."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1] in ("torch", "kernel", "either", "triton"):
        return WithoutLibrary(sys.argv[1])
    return None if sys.argv[1] == "cpu" else Late(sys.argv[1])


def plain(event: Event) -> dict[str, Any]:
    """An event without what may differ between devices: the time, the device, numbers of records, and which of the
    modules that return the same tensor is named as the last good one."""
    facts = event.to_dict()
    for name in ("time", "device", "seq", "clean_before"):
        del facts[name]
    return facts


def answer(value: Any) -> None:
    """The program's result, as the last line of its output."""
    print(json.dumps(value))
