"""Kernels for tensors that are not on the CPU: the CUDA library, loaded when the first such tensor shows up.

A scan that somebody waits for has two ways more where the library is missing: Triton, then plain PyTorch. Which of the
three reads what is watched is chosen in watching.py.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from nanscan.backends import eager
from nanscan.errors import NanscanError, NanscanWarning
from nanscan.record import RECORD_DTYPE

LIBRARY = "libnanscan_cuda.so"
ONE_SHOT_CAPACITY = 64  # records: a scan that is waited for has one under way

_outcome: str | None = None  # "" once it is loaded, else why it is not
_stand_in = False
_one_shot_lock = threading.Lock()
_one_shot: Any = None  # a session of the core that no scanner knows: its ring takes the records of scan_record()
_triton_failed = ""  # why Triton cannot be used, once that is known
_said: set[str] = set()


def load(core: ModuleType | None) -> str:
    """Load the library into the core, once. Returns "" or the reason why there is none."""
    global _outcome
    if _outcome is None:
        _outcome = _load(core)
    return _outcome


def indices(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The devices that these tensors lie on, as far as there could be kernels for them."""
    if _stand_in:
        return {0}
    return {t.device.index or 0 for t in tensors if t.device.type == "cuda"}


def current() -> set[int]:
    """The device that code without a model most likely runs on; none as long as the program has not touched one."""
    if _stand_in:
        return {0}
    return {torch.cuda.current_device()} if torch.cuda.is_available() and torch.cuda.is_initialized() else set()


def use(core: ModuleType, path: str | os.PathLike[str], *, stand_in: bool = False) -> None:
    """Load a library by its path. With `stand_in` memory of the CPU counts as the device's: for tests.

    Raises:
        RuntimeError: it cannot be loaded, or another one is.
    """
    global _outcome, _stand_in
    core.load_device_library(os.fspath(path), stand_in)
    _outcome, _stand_in = "", stand_in


def stand_in() -> None:
    """From now on memory of the CPU counts as a device's: for tests."""
    global _stand_in
    _stand_in = True


def stands_in() -> bool:
    """Does memory of the CPU count as a device's?"""
    return _stand_in


def is_device_tensor(tensor: torch.Tensor) -> bool:
    """Is it scan_record() here that reads this tensor?"""
    return tensor.device.type == ("cpu" if _stand_in else "cuda")


def scan_record(core: ModuleType | None, tensor: torch.Tensor, *, triton_only: bool = False) -> np.ndarray:
    """Statistics of one tensor on a GPU: [1] of RECORD_DTYPE. Waits for it.

    By the CUDA library, else by Triton, else by plain PyTorch; each step down is said once.

    Raises:
        UnscannableTensor: with the reason.
        NanscanError: the stream captures a graph; with `triton_only`, Triton cannot be used.
    """
    eager.check_scannable(tensor)
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NanscanError(
            "scan() waits for the GPU, which a stream that captures a graph forbids; scan before or after the capture"
        )
    if not triton_only:
        why = load(core)
        if why == "":
            record, why = _by_library(core, tensor)
            if record is not None:
                return record
        _say(f"nanscan.scan() reads GPU tensors with Triton, not with the CUDA library: {why}")
    record, why = by_triton(tensor)
    if record is not None:
        return record
    if triton_only:
        raise NanscanError(
            f"NANSCAN_BACKEND=triton, but Triton cannot be used: {why}. "
            "Mend it, or unset the variable to take what is there"
        )
    _say(f"nanscan.scan() reads GPU tensors with plain PyTorch, which is much slower; Triton cannot be used: {why}")
    return eager.scan_record(tensor)


def _by_library(core: Any, tensor: torch.Tensor) -> tuple[np.ndarray | None, str]:
    """The record, or the reason why there is none."""
    global _one_shot
    index = tensor.device.index or 0
    with _one_shot_lock:
        if _one_shot is None:
            _one_shot = core.Session(ONE_SHOT_CAPACITY)
        session = _one_shot
        if not session.open_device(index):
            return None, session.device_error
        launched = session.scan_at(tensor, 0, 0)
        session.flush_device()
        record = np.frombuffer(session.drain(), RECORD_DTYPE)
        if launched and len(record) == 1 and int(record["n"][0]) == tensor.numel():
            return record, ""
        return None, session.device_error or "it takes tensors of at most 16 dimensions"


def by_triton(tensor: torch.Tensor) -> tuple[np.ndarray | None, str]:
    """The record, or the reason why there is none. Waits for it."""
    global _triton_failed
    if _triton_failed:
        return None, _triton_failed
    try:
        launch = import_module("nanscan.triton_kernels.launch")  # by name: a type checker may not have Triton
        return np.frombuffer(launch.scan_record(tensor), RECORD_DTYPE), ""
    except eager.UnscannableTensor:
        raise
    except Exception as err:  # no Triton, no driver that it knows, a kernel that does not compile here
        _triton_failed = " ".join(f"{type(err).__name__}: {err}".split())[:300]
        return None, _triton_failed


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, NanscanWarning, stacklevel=5)  # past the backend and nanscan.scan()


def _load(core: ModuleType | None) -> str:
    if core is None:
        return "the compiled core is missing"
    path = Path(__file__).absolute().parent.parent / LIBRARY
    if not path.is_file():
        return f"{LIBRARY} was not built (it needs nvcc when nanscan is installed)"
    try:
        core.load_device_library(os.fspath(path), False)
    except RuntimeError as err:
        return f"{LIBRARY} cannot be loaded: {err}"
    return ""
