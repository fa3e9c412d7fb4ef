"""The step clock: when is a step over?

``clock="auto"``: a step is over when a root forward begins after an optimizer's step, a GradScaler's update() or
scanner.step(). A program that only runs forward passes without gradients (inference) has one step per root forward;
once it has trained, evaluation passes end no step by themselves, so that step numbers stay those of training.
``clock="manual"``: only scanner.step() ends a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanscan.config import LEVELS

# torch.profiler.ProfilerAction by name, so that torch.profiler need not be imported. These mean "do not scan".
_IDLE_ACTIONS = ("NONE", "WARMUP")


class StepClock:
    """Counts steps.

    Args:
        manual: only `end()` ends a step.
    """

    def __init__(self, manual: bool) -> None:
        self.manual = manual
        self.step = 0
        self.trained = False  # some optimizer has stepped, or some gradient was wanted
        self._over = False
        self._forwards = 0  # root forwards in this step

    @property
    def forwards(self) -> int:
        """Root forwards of the running step so far."""
        return self._forwards

    @property
    def update_done(self) -> bool:
        """Whether the running step's update is done, so that only the boundary is left."""
        return self._over

    @property
    def steps(self) -> int:
        """Steps so far, the running one included once it has begun."""
        return self.step + (1 if self._over or self._forwards > 0 else 0)

    def mark_over(self) -> None:
        """The running step's update is done: the next root forward begins a new one."""
        self.trained = True
        self._over = True

    def begins_new_step(self, grad_enabled: bool) -> bool:
        """Asked before each root forward; True when the step before it is over."""
        if grad_enabled:
            self.trained = True
        inference = not self.trained and self._forwards > 0
        self._forwards += 1
        return not self.manual and (self._over or inference)

    def end(self, forward_begins: bool) -> int:
        """The step is over; returns the number of the next one."""
        self._over = False
        self._forwards = 1 if forward_begins else 0
        self.step += 1
        return self.step


def level_at(step: int, every: int, schedule: Callable[[int], Any] | None, level: str) -> tuple[str | None, bool]:
    """(the level `step` is watched at, None for a step that is not scanned; whether the schedule named that level)

    Args:
        step: from 0.
        every: scan steps 0, every, 2 * every ...
        schedule: step -> bool, a level name, or a torch.profiler action. Asked once per step; both must agree.
        level: the scanner's own.
    """
    if step % every != 0:
        return None, False
    if schedule is None:
        return level, False
    answer = schedule(step)
    if isinstance(answer, str):
        if answer not in LEVELS:
            raise ValueError(
                f"schedule({step}) returned {answer!r}; return a bool or one of {', '.join(map(repr, LEVELS))}"
            )
        return answer, True
    name = getattr(answer, "name", None)
    if isinstance(name, str) and type(answer).__name__ == "ProfilerAction":
        return (None if name in _IDLE_ACTIONS else level), False
    return (level if answer else None), False
