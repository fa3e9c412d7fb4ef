"""Optimizer steps, seen through torch's global step hooks.

One pair of hooks for the process, however many scanners are open; they are there only while one is.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class OptimizerWatcher(Protocol):
    """What is told of optimizer steps."""

    def before_optimizer(self, optimizer: Optimizer) -> None: ...
    def after_optimizer(self, optimizer: Optimizer) -> None: ...


_watchers: list[OptimizerWatcher] = []
_handles: list[Any] = []
_steps = 0  # optimizer steps that ran to their end; the GradScaler hook tells a skipped step by it


def steps_run() -> int:
    """How many optimizer steps ran to their end while somebody watched."""
    return _steps


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for watcher in tuple(_watchers):
        watcher.before_optimizer(optimizer)


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _steps
    if torch.compiler.is_compiling():
        return
    _steps += 1
    for watcher in tuple(_watchers):
        watcher.after_optimizer(optimizer)


def add(watcher: OptimizerWatcher) -> None:
    """Start telling `watcher`; installs the global hooks with the first one."""
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before))
        _handles.append(register_optimizer_step_post_hook(_after))
    _watchers.append(watcher)


def remove(watcher: OptimizerWatcher) -> None:
    """Stop telling it; takes the global hooks off with the last one."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        while _handles:
            _handles.pop().remove()
