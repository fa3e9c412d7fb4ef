"""Loss scaling: did a GradScaler take part in this step, and did it skip the update?

A skipped step calls no optimizer hook and a GradScaler has no hooks of its own, so its three methods are wrapped while
a scanner is open, and put back as they were when the last one closes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from torch.amp import GradScaler
from torch.optim import Optimizer

from nanscan.hooks.optimizer_hook import steps_run


class ScalerWatcher(Protocol):
    """What is told of loss scaling."""

    def scaling(self, begins: bool) -> None: ...
    def scaler_stepped(
        self, optimizer: Optimizer, skipped: bool, scale: tuple[float, float] | None
    ) -> None: ...  # scale: of a skipped step, and what update() makes of it
    def scaler_updated(self) -> None: ...


_watchers: list[ScalerWatcher] = []
_originals: dict[str, Callable[..., Any]] = {}


def _skipped_inside(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """A fused optimizer is always called and skips by itself; the scaler's own flag says so (CPU: no sync)."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    try:
        found = scaler._found_inf_per_device(optimizer)
    except Exception:  # a private method: without it the step counts as taken
        return False
    return any(flag.device.type == "cpu" and bool(flag) for flag in found.values())


def _scale_of(scaler: GradScaler, waited: bool) -> tuple[float, float] | None:
    """(the scale of a step that is skipped, what update() makes of it), where looking costs no wait.

    Args:
        waited: whether the scaler has just asked its device whether to skip, so that the scale is there as well.
    """
    try:
        scale = scaler._scale
        if scale is None or not (waited or scale.device.type == "cpu"):
            return None
        before = float(scale)
        return before, float(scale.new_tensor(before * scaler.get_backoff_factor(), device="cpu"))
    except Exception:  # a private attribute: without it the numbers are left out
        return None


def _wrap_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: GradScaler, outputs: Any) -> Any:
        if self.is_enabled():
            watchers = tuple(_watchers)
            for watcher in watchers:
                watcher.scaling(True)
            try:
                return original(self, outputs)
            finally:
                for watcher in watchers:
                    watcher.scaling(False)
        return original(self, outputs)

    return scale


def _wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = steps_run()
        result = original(self, optimizer, *args, **kwargs)
        if self.is_enabled():
            left_out = steps_run() == before
            skipped = left_out or _skipped_inside(self, optimizer)
            scale = _scale_of(self, waited=left_out) if skipped else None
            for watcher in tuple(_watchers):
                watcher.scaler_stepped(optimizer, skipped, scale)
        return result

    return step


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.is_enabled():
            for watcher in tuple(_watchers):
                watcher.scaler_updated()
        return result

    return update


_WRAPPERS = {"scale": _wrap_scale, "step": _wrap_step, "update": _wrap_update}


def add(watcher: ScalerWatcher) -> None:
    """Start telling `watcher`; wraps GradScaler with the first one."""
    if not _originals:
        for name, wrap in _WRAPPERS.items():
            _originals[name] = getattr(GradScaler, name)
            setattr(GradScaler, name, wrap(_originals[name]))
    _watchers.append(watcher)


def remove(watcher: ScalerWatcher) -> None:
    """Stop telling it; unwraps GradScaler with the last one."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        for name, original in _originals.items():
            setattr(GradScaler, name, original)
        _originals.clear()
