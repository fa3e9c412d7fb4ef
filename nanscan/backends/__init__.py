"""Which code reads tensors: the compiled core, or plain PyTorch as the last resort. Chosen once, at first use."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nanscan import config
from nanscan.backends.native import NoCore, load_core
from nanscan.errors import NanscanError, NanscanWarning


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to scan.

    Args:
        name: "native" or "eager": what reads CPU tensors, and observes programs.
        scan_record: tensor -> array [1] of RECORD_DTYPE, its statistics; raises UnscannableTensor. Tensors on a GPU
            have a way of their own: see nanscan.backends.device.
        core: the module nanscan._C, None for eager.
        why: in one line, how this one came to be chosen.
    """

    name: str
    scan_record: Callable[[Any], Any]
    core: ModuleType | None
    why: str


_lock = threading.Lock()
_chosen: Backend | NanscanError | None = None


def get() -> Backend:
    """The backend of this process. The first call may compile; what came of it, a failure too, is remembered."""
    global _chosen
    with _lock:
        if _chosen is None:
            try:
                _chosen = _choose(config.read_env())
            except NanscanError as err:
                _chosen = err
    if isinstance(_chosen, NanscanError):
        raise NanscanError(*_chosen.args)
    return _chosen


def _choose(settings: config.Settings) -> Backend:
    if settings.backend == "eager":
        if settings.require_native:
            raise NanscanError(
                "NANSCAN_REQUIRE_NATIVE=1 and NANSCAN_BACKEND=eager contradict each other; unset one of them"
            )
        from nanscan.backends.eager import scan_record

        return Backend("eager", scan_record, None, "NANSCAN_BACKEND=eager")
    triton = settings.backend == "triton"
    try:
        core, origin = load_core(settings)
    except NoCore as none:
        causes = "".join(f"\n  {cause}" for cause in none.causes)
        if settings.require_native or settings.backend == "native":
            asked = "NANSCAN_REQUIRE_NATIVE=1" if settings.require_native else "NANSCAN_BACKEND=native"
            raise NanscanError(
                f"{asked}, but there is no compiled core:{causes}\n"
                "  Mend either, or unset the variable to run on plain PyTorch."
            ) from none
        warnings.warn(
            f"nanscan has no compiled core and scans with plain PyTorch, which is much slower:{causes}\n"
            "  Mend either; or NANSCAN_BACKEND=eager accepts plain PyTorch and silences this.",
            NanscanWarning,
            stacklevel=4,  # past get() and the public function that called it
        )
        return _eager(str(none), triton)
    return _native(core, origin, triton)


def _native(core: ModuleType, why: str, triton_only: bool) -> Backend:
    import numpy as np

    from nanscan.backends import device
    from nanscan.backends.eager import UnscannableTensor
    from nanscan.record import RECORD_DTYPE

    def scan_record(tensor: Any) -> Any:
        if device.is_device_tensor(tensor):
            return device.scan_record(core, tensor, triton_only=triton_only)
        try:
            raw = core.scan(tensor)
        except TypeError as err:
            raise UnscannableTensor(str(err)) from None
        return np.frombuffer(raw, RECORD_DTYPE)

    return Backend("native", scan_record, core, why)


def _eager(why: str, triton_only: bool) -> Backend:
    from nanscan.backends import device, eager

    def scan_record(tensor: Any) -> Any:
        if device.is_device_tensor(tensor):
            return device.scan_record(None, tensor, triton_only=triton_only)
        return eager.scan_record(tensor)

    return Backend("eager", scan_record, None, why)
