"""Counts what followed the first error, for the "after" line of a report."""

from __future__ import annotations

from dataclasses import replace

from nanscan.events.aftermath import Aftermath
from nanscan.origin.facts import BadCall, StepFacts
from nanscan.record import Phase
from nanscan.sites import SiteKind, SiteTable


class AftermathWatch:
    """Looks at the step of the first error while it lasts, then counts the steps that were bad because of it."""

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites
        self._seq: int | None = None  # of the first error
        self._in_step = False
        self._closed = Aftermath()
        self._forgotten = 0  # bad calls of the first error's step that its facts do not hold any more

    def begin(self, seq: int) -> None:
        """An error was told. Only the first one counts."""
        if self._seq is None:
            self._seq, self._in_step = seq, True

    def forget(self, calls: list[BadCall]) -> None:
        """The running step's facts drop these."""
        if self._in_step and self._seq is not None:
            self._forgotten += sum(call.seq > self._seq for call in calls)

    def so_far(self, facts: StepFacts, explained: bool) -> Aftermath | None:
        """None while there was no error. `explained`: the running step is bad for a reason told before."""
        if self._seq is None:
            return None
        if self._in_step:
            return self._measure(facts, self._seq)
        return replace(self._closed, later_steps=self._closed.later_steps + explained)

    def close_step(self, facts: StepFacts, explained: bool, skipped: bool) -> None:
        """A step is over; `explained`: it was bad for a reason told before."""
        if self._seq is None:
            return
        if self._in_step:
            self._closed = replace(self._measure(facts, self._seq), skipped=skipped)
            self._in_step = False
        elif explained:
            self._closed = replace(self._closed, later_steps=self._closed.later_steps + 1)

    def _measure(self, facts: StepFacts, seq: int) -> Aftermath:
        return Aftermath(
            outputs=self._forgotten + sum(call.seq > seq for call in facts.calls.values()),
            gradients=len({fact.site for fact in facts.param_grads}),
            n_gradients=sum(self._sites[i].kind is SiteKind.PARAM_GRAD for i in range(len(self._sites))),
            parameters=len({fact.site for fact in facts.values if fact.phase == Phase.OPTIMIZER}),
        )
