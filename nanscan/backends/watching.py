"""What reads the tensors that are watched on a GPU: the CUDA library, else Triton, else plain PyTorch. Chosen once.

None of the three waits in a hook. The first has kernels for all of it; the others write the same records through pinned
memory and an event, by way of csrc/hooks/torch_device.cpp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from nanscan.backends import device

Launch = Callable[[torch.Tensor, torch.Tensor, int], None]


class Reader(NamedTuple):
    """Outcome of the choice.

    Args:
        refusal: why nothing reads them, "" if something does.
        note: what reads them, where it is not the CUDA library, and why; else "".
    """

    refusal: str = ""
    note: str = ""


BY_TRITON = "GPU tensors are read by Triton kernels, in one or two launches per tensor that take the GIL"
BY_PYTORCH = "GPU tensors are read by plain PyTorch, slowly: about 25 launches for each 4 million elements of a tensor"
NO_GRAPHS = "what is captured into a CUDA graph is counted, not read"

_lock = threading.Lock()
_reader: Reader | None = None


def prepare(core: ModuleType | None, backend: str, index: int) -> Reader:
    """Choose for this process, at the first device: that of number `index`. May compile a kernel, and wait for it.

    Args:
        backend: NANSCAN_BACKEND. "native" takes nothing but the library, "triton" nothing but Triton.
    """
    global _reader
    if core is None:
        return Reader(note="GPU tensors are read by plain PyTorch, which waits for each: there is no compiled core")
    with _lock:
        if _reader is None:
            if device.stands_in():
                _reader = Reader()
            elif torch.cuda.is_current_stream_capturing():
                return Reader("a graph is being captured")  # asked again later
            else:
                _reader = _choose(core, backend, index)
        return _reader


def failure(core: ModuleType | None) -> str:
    """What became of Triton since: "", or one line."""
    why = "" if core is None else core.kernel_failure()
    return f"Triton failed, and plain PyTorch reads GPU tensors instead, slowly: {why}" if why else ""


def forecast(core: ModuleType | None, backend: str) -> str:
    """For people: what would read watched GPU tensors here, and why. Loads the library; compiles nothing."""
    if core is None:
        return "plain PyTorch, which waits for each tensor (there is no compiled core)"
    why = "NANSCAN_BACKEND=triton" if backend == "triton" else device.load(core)
    if why == "":
        return f"the CUDA library ({device.LIBRARY})"
    if backend == "native":
        return f"nothing: {why}, and NANSCAN_BACKEND=native takes no other"
    if find_spec("triton") is not None:
        return f"Triton's kernels, if they run there ({why})"
    return "nothing: Triton is not installed" if backend == "triton" else f"plain PyTorch, slowly ({why}; no Triton)"


def use_stand_in(core: ModuleType, launch: Launch | None = None, *, only_kernel: bool = False) -> None:
    """For tests: memory of the CPU counts as a device's, read by `launch`, else by plain PyTorch; records are held.

    Raises:
        RuntimeError: a library is loaded.
    """
    core.use_torch_device(launch, only_kernel, True)
    device.stand_in()


def _choose(core: ModuleType, backend: str, index: int) -> Reader:
    if backend == "triton":
        why = "NANSCAN_BACKEND=triton"
    else:
        why = device.load(core)
        if why == "":
            return Reader()
        if backend == "native":
            return Reader(f"{why}, and NANSCAN_BACKEND=native takes no other")
    launch, no_triton = _triton(index)
    if launch is None and backend == "triton":
        return Reader(f"NANSCAN_BACKEND=triton, but Triton cannot be used: {no_triton}")
    try:
        core.use_torch_device(launch, backend == "triton")
    except RuntimeError as err:
        return Reader(f"{why}; without it, {err}")
    if launch is not None:
        return Reader(note=f"{BY_TRITON}; {NO_GRAPHS}: {why}")
    return Reader(note=f"{BY_PYTORCH}; {NO_GRAPHS}: {why}; Triton cannot be used: {no_triton}")


def _triton(index: int) -> tuple[Launch | None, str]:
    """What launches Triton's kernels, or why they do not run on this device."""
    try:
        record, why = device.by_triton(torch.zeros(1, device=f"cuda:{index}"))
    except RuntimeError as err:  # no memory there, or no device
        record, why = None, " ".join(str(err).split())[:300]
    if record is None:
        return None, why
    launch: Any = import_module("nanscan.triton_kernels.launch")
    return launch.launch_into, ""
