"""What the hooks tell a scanner, and what it does about it."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

from nanscan.hooks.core import CoreSession, Tap
from nanscan.record import Phase
from nanscan.scanner.clock import StepClock
from nanscan.scanner.guard import guarded
from nanscan.scanner.reaction import Reaction
from nanscan.sites import NO_SITE, SiteTable

if TYPE_CHECKING:
    from nanscan.scanner.models import WatchedModels


class HookReceiver:
    """The half of a scanner that hooks call. Its other half (Scanner) sets it up and judges what was recorded."""

    sites: SiteTable
    _core: CoreSession
    _clock: StepClock
    _models: WatchedModels
    _reaction: Reaction
    _scaled: bool  # a GradScaler scaled a loss in this step
    _skipped: bool  # and its verdict was to skip the update
    _scale: tuple[float, float] | None  # then: its scale, and the next one
    _optimizer_seen: bool
    _version: int  # of all parameters together, as of the last root forward
    _n_bad_seen: int
    _owns: weakref.WeakKeyDictionary[Optimizer, bool]
    _extensions: dict[int, Tap]  # by site

    def _process(self, point: str) -> None:
        raise NotImplementedError

    def _close_step(self, forward_begins: bool) -> None:
        raise NotImplementedError

    @guarded
    def forward_begins(self) -> None:
        """Before each root forward."""
        if torch._C._current_graph_task_id() != -1:
            return  # a recomputed forward inside a backward is no new batch
        if not self._optimizer_seen:
            self._look_for_update_by_hand()
        self._models.collect_lazy()
        if self._clock.begins_new_step(torch.is_grad_enabled()):
            self._close_step(forward_begins=True)

    @guarded
    def attend(self, news: int) -> None:
        """An outermost forward ended after something bad was recorded, or the ring fills up."""
        self._process("forward")
        self._reaction.safe_point(boundary=False)

    @guarded
    def backward_ended(self) -> None:
        """At the end of a backward in which something bad was recorded."""
        self._process("backward")
        self._reaction.safe_point(boundary=False)

    @guarded
    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Before an optimizer's step: gradients that changed since backward (clipping, unscaling) are seen again."""
        if not self._is_ours(optimizer):
            return
        self._optimizer_seen = True
        self._core.in_optimizer = True  # no count: a step that an exception ended told nobody
        self._core.scan_grads(int(Phase.OPTIMIZER))
        if self._has_news():
            self._process("backward")
            self._reaction.safe_point(boundary=False)

    @guarded
    def after_optimizer(self, optimizer: Optimizer) -> None:
        """After it: parameters and floating buffers in one pass."""
        if not self._is_ours(optimizer):
            return
        self._core.in_optimizer = False
        self._core.scan_values(int(Phase.OPTIMIZER))
        self._clock.mark_over()
        self._core.reset_stack()
        if not self._scaled:  # a GradScaler's own verdict comes right after
            self._process("optimizer")
            self._reaction.safe_point(boundary=False)

    @guarded
    def scaling(self, begins: bool) -> None:
        self._scaled = True
        self._core.in_scale = begins

    @guarded
    def scaler_stepped(self, optimizer: Optimizer, skipped: bool, scale: tuple[float, float] | None) -> None:
        if self._is_ours(optimizer):
            self._scaled = True
            self._skipped |= skipped
            self._scale = scale if skipped else self._scale
            self._process("optimizer")
            self._reaction.safe_point(boundary=False)

    @guarded
    def scaler_updated(self) -> None:
        if self._scaled:
            self._clock.mark_over()

    @guarded
    def check(self, tensor: torch.Tensor, name: str) -> None:
        """nanscan.check() arrives here."""
        site = self._core.current_site()
        where = None if site == NO_SITE else self.sites[site]
        here = self.sites.add_check(name, where.module if where else None, where.module_type if where else None)
        self._core.scan_at(tensor, here, int(self._phase_now(where is not None)))
        if self._has_news():
            self._process("forward")
            self._reaction.safe_point(boundary=False)

    @guarded
    def extension_tap(self, name: str) -> Tap:
        """The hooks of a wrapped function that is about to be called, in the module that runs now."""
        site = self._core.current_site()
        where = None if site == NO_SITE else self.sites[site]
        here = self.sites.add_extension(name, where.module if where else None, where.module_type if where else None)
        if here not in self._extensions:
            self._extensions[here] = self._core.tap(here, extension=name)
        return self._extensions[here]

    def tensor_at(self, address: int) -> torch.Tensor | None:
        """A tensor this scanner knows whose memory the address points into."""
        return self._core.tensor_at(address)

    def _forget_update(self) -> None:
        """A step is over: what was noticed of its update, finished or broken off, is done with."""
        self._core.in_optimizer = False
        if not self._optimizer_seen:
            self._version = self._models.version()

    def _look_for_update_by_hand(self) -> None:
        """Without an optimizer, parameters written in place since the last batch mean that a step is over."""
        version = self._models.version()
        if self._clock.trained and version != self._version:
            self._clock.mark_over()
        self._version = version

    def _phase_now(self, in_module: bool) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return Phase.BACKWARD
        if self._core.in_optimizer and _optimizer_runs():
            return Phase.OPTIMIZER
        if in_module or self._clock.forwards > 0 or not self._models.any:
            return Phase.FORWARD
        return Phase.DATA

    def _has_news(self) -> bool:
        return self._core.n_bad != self._n_bad_seen

    def _is_ours(self, optimizer: Optimizer) -> bool:
        if optimizer not in self._owns:
            self._owns[optimizer] = self._models.owns(optimizer)
        return self._owns[optimizer]


def _optimizer_runs() -> bool:
    """Is an optimizer's step on this thread's stack? One that an exception ended has called no post hook."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == optimizer_module.__file__:
            return True
        frame = frame.f_back
    return False
