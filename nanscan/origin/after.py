"""Counts what followed the first error, for the "after" line of a report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

import numpy as np

from nanscan.events.aftermath import Aftermath
from nanscan.origin.facts import BadCall
from nanscan.origin.state import SKIPS_EXPECTED
from nanscan.origin.tally import StepTally
from nanscan.sites import SiteKind, SiteTable

Later = Callable[[], tuple[int, int]]  # bad (module outputs, ops) of the running step after the first error
MAX_HELD = 1 << 16  # records of a step that are not counted yet: a step may never end


class Past(Protocol):
    """What is known of healthy values."""

    def seen_good(self) -> Collection[int]:
        """Sites whose value in the running step was finite and not all zero."""

    def updated_before(self, step: int) -> int | None:
        """The last step before this one in which the parameters were looked at after an update, and were good."""


class AftermathWatch:
    """Looks at the step of the first error while it lasts, then counts the steps that were bad because of it.

    The judges of a scanner's levels share one: an error told at one level is followed at the others.
    """

    def __init__(self, sites: SiteTable, past: Past | None = None) -> None:
        self._sites = sites
        self._past = past
        self._tally = StepTally(sites)
        self._held: list[np.ndarray | None] = []  # pieces of the step that are not counted yet; None: an update is over
        self._n_held = 0  # records in them
        self._seq: int | None = None  # of the first error
        self._later: Later | None = None  # while its step lasts
        self._bad_before: Callable[[], Collection[int]] = tuple
        self._closed = Aftermath()
        self._forgotten = 0  # bad calls of the first error's step that its facts do not hold any more
        self._skips = 0  # in a row, up to the running step; 0 if that is not skipped
        self._skips_before = 0  # the same for the step before it
        self._scale: tuple[float, float] | None = None

    def witness(self, records: np.ndarray) -> None:
        """All records of a step in which something is bad, healthy ones too. They are kept, and counted when an error
        is told: in a model with masks something is bad in every step."""
        if self._seq is not None and self._later is None:
            return
        self._held.append(records)
        self._n_held += len(records)
        if self._n_held > MAX_HELD:
            self._count()

    def begin(self, seq: int, later: Later, bad_before: Callable[[], Collection[int]]) -> None:
        """An error was told. Only the first one counts.

        Args:
            later: counts what came after it.
            bad_before: sites of parameters and buffers known to be bad before its step.
        """
        if self._seq is None:
            self._seq, self._later, self._bad_before = seq, later, bad_before

    def forget(self, calls: list[BadCall]) -> None:
        """The running step's facts drop these."""
        if self._later is not None and self._seq is not None:
            self._forgotten += sum(call.seq > self._seq for call in calls)

    def update_over(self) -> None:
        """An optimizer has stepped, or its step was skipped."""
        if self._n_held and (not self._held or self._held[-1] is not None):
            self._held.append(None)

    def skip(self, n_in_a_row: int, scale: tuple[float, float] | None) -> None:
        """The running step is left out by a GradScaler, like those before it; `scale`: what it was and will be."""
        self._skips, self._scale = n_in_a_row, scale

    def so_far(self, explained: bool) -> Aftermath | None:
        """None while there was no error. `explained`: the running step is bad for a reason told before."""
        if self._seq is None:
            return None
        if self._later is not None:
            return self._measure(self._later)
        return replace(self._closed, later_steps=self._closed.later_steps + explained)

    def close_step(self, explained: bool) -> None:
        """A step is over; `explained`: it was bad for a reason told before."""
        if self._later is not None:
            self._closed, self._later = self._measure(self._later), None
            self._bad_before = tuple  # it may hold on to all of the step
        elif self._seq is not None and explained:
            self._closed = replace(self._closed, later_steps=self._closed.later_steps + 1)
        if self._held or self._n_held:
            self._tally, self._held, self._n_held = StepTally(self._sites), [], 0
        self._skips_before, self._skips, self._scale = self._skips, 0, None

    def _count(self) -> None:
        for piece in self._held:
            if piece is None:
                self._tally.update_over()
            else:
                self._tally.take(piece)
        self._held, self._n_held = [], 1  # not 0: there is something to forget at the step's end

    def _measure(self, later: Later) -> Aftermath:
        self._count()
        tally, skipped = self._tally, self._skips > 0
        outputs, ops = later()
        spread_from, spread_to = (0, 0) if skipped else tally.spread
        bad_before = self._bad_before()
        buffers = tally.buffers.difference(bad_before)
        left_bad = tally.parameters or buffers
        return Aftermath(
            outputs=self._forgotten + outputs,
            ops=ops,
            gradients=len(tally.gradients),
            n_gradients=self._n_gradients(),
            parameters=len(tally.parameters),
            buffers=len(buffers),
            spread_from=spread_from,
            spread_to=spread_to,
            zeroed=0 if skipped else tally.zeroed,
            skipped=skipped,
            last_clean=self._last_clean(bad_before) if left_bad else None,
            scale_from=None if self._scale is None else self._scale[0],
            scale_to=None if self._scale is None else self._scale[1],
            skips_in_a_row=self._skips if self._skips > SKIPS_EXPECTED else 0,
        )

    def _n_gradients(self) -> int:
        good = () if self._past is None else self._past.seen_good()  # those from before anything was bad
        return len(self._tally.seen.union(i for i in good if self._sites[i].kind is SiteKind.PARAM_GRAD))

    def _last_clean(self, bad_before: Collection[int]) -> int | None:
        if self._past is None or any(self._sites[i].kind is SiteKind.PARAM for i in bad_before):
            return None
        step, now = self._past.updated_before(self._tally.step), self._tally.step
        # Steps that a GradScaler skipped have left the parameters as they were.
        return now - 1 if step is not None and step + self._skips_before == now - 1 else step
