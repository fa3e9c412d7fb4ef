"""Kernels for tensors that are not on the CPU: the CUDA library, loaded when the first such tensor shows up."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch

LIBRARY = "libnanscan_cuda.so"

_outcome: str | None = None  # "" once it is loaded, else why it is not
_stand_in = False


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
