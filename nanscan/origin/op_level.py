"""Origin at op level: names the op, the autograd node or the reader, and its source line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from nanscan.events.aftermath import Aftermath
from nanscan.events.allow import AllowList
from nanscan.events.event import Event
from nanscan.origin.after import AftermathWatch
from nanscan.origin.facts import kinds_of
from nanscan.origin.narrate import ShapeOf
from nanscan.origin.op_births import MAX_BORN, Births, OpBirth, record_bits
from nanscan.origin.op_calls import CallBit, Holds, batches, calls_in
from nanscan.origin.op_words import OpWords
from nanscan.origin.state import SKIPS_EXPECTED, expected_skip
from nanscan.record import Flag, Phase
from nanscan.sites import SiteKind, SiteTable

POINTS = ("forward", "backward", "optimizer", "boundary")


class OpOrigin:
    """Judges one session's call records; the same interface as ModuleOrigin.

    Args:
        op_name, line_text: what the ids in call records stand for.
        compiled: whether code that torch.compile has made may have run, in which no op is seen.
        after: counts what followed the first error; shared by the judges of one scanner.
    """

    wants_healthy_steps = False

    def __init__(
        self,
        sites: SiteTable,
        shape_of: ShapeOf,
        op_name: Callable[[int], str],
        line_text: Callable[[int], str],
        rank: int = 0,
        *,
        allow: AllowList | None = None,
        clock: Callable[[], float] = time.time,
        compiled: Callable[[], bool] = lambda: False,
        after: AftermathWatch | None = None,
    ) -> None:
        self._sites = sites
        self._allow = AllowList() if allow is None else allow
        self._words = OpWords(sites, shape_of, op_name, line_text, rank, clock, compiled)
        self._known_values: dict[int, int] = {}  # parameters and buffers that were told of, with their bits
        self._from_start: dict[int, int] = {}  # those that were bad before anything ran
        self._births = Births(self._known_values)
        self._after = AftermathWatch(sites) if after is None else after
        self._told_step = self._told_any = False
        self._told_sites: set[tuple[Any, ...]] = set()
        self._bad_grads: list[Any] = []
        self._known_grads: set[int] = set()  # sites of gradients that a told step left bad: nobody may have zeroed them
        self._bad_values: list[Any] = []
        self._batch: int | None = None
        self._skips_in_a_row = 0
        self._skip_counted = False  # in this step
        self.counts: Counter[str] = Counter()

    @property
    def aftermath(self) -> Aftermath | None:
        """What followed the first error; None while there is none."""
        return self._after.so_far(self._births.explained)

    @property
    def bad_values(self) -> dict[int, int]:
        """Sites of the parameters and buffers that were left non-finite, with their bits."""
        return {**self._from_start, **self._known_values}

    @property
    def told_any(self) -> bool:
        """Whether an error was told."""
        return self._told_any

    def take_over(self, bad_values: dict[int, int], told_any: bool) -> None:
        """A step begins here that followed others judged elsewhere: what was bad by then explains itself."""
        self._known_values.update(bad_values)
        self._births.inherits = told_any

    def feed(self, records: np.ndarray) -> None:
        """Take records of the running step, in seq order; any number of pieces."""
        for piece in batches(records):
            self._feed(piece)

    def _feed(self, records: np.ndarray) -> None:
        calls, rest = calls_in(records)
        for rec in rest:
            flags = int(rec["flags"])
            if flags & int(Flag.ENTER):
                self._batch = int(rec["n"])
            elif flags & int(Flag.BAD) and int(rec["site"]) < len(self._sites):
                kind = self._sites[int(rec["site"])].kind
                if kind is SiteKind.PARAM_GRAD:
                    self._bad_grads.append(rec)
                elif kind in (SiteKind.PARAM, SiteKind.BUFFER) and int(rec["phase"]) in (Phase.NONE, Phase.DATA):
                    self._from_start[int(rec["site"])] = record_bits(rec)
                elif kind in (SiteKind.PARAM, SiteKind.BUFFER):
                    self._bad_values.append(rec)
        for call in calls:
            self._births.take(call)

    def witness(self, records: np.ndarray) -> None:
        """All records of a step in which something is bad, healthy ones too; before decide()."""
        self._after.witness(records)

    def decide(
        self, point: str, *, scaler: bool = False, skipped: bool = False, scale: tuple[float, float] | None = None
    ) -> list[Event]:
        """Events that can be told at this safe point; each is returned once. See ModuleOrigin.decide()."""
        if point not in POINTS:
            raise ValueError(f"decide(point={point!r}): use one of {', '.join(map(repr, POINTS))}")
        stage = POINTS.index(point)
        events: list[Event] = []
        if scaler and skipped:
            self._after.skip(self._skips_in_a_row + 1, scale)
        if stage >= 1 and (self._bad_grads or self._bad_values):
            self._gradients_escaped()
        verdict = not scaler or stage >= 2
        for birth in sorted(self._births.born, key=lambda b: b.seq):
            if birth.told or birth.escaped is None or birth.culprit is not birth:
                continue
            if birth.scaled and not verdict:
                continue
            events += self._tell(birth, scaler and skipped, scale)
        if stage >= 1 and verdict and not self._told_step and not (scaler and skipped):
            events += self._unexplained(stage)
        if point == "optimizer":
            self._after.update_over()
        if point == "boundary":
            return events + self._end_step(scaler, skipped)
        old = self._births.overdue()
        events += self._mention(old)
        for birth in old:
            birth.settle()
        del self._bad_grads[MAX_BORN:], self._bad_values[MAX_BORN:]
        return events

    def _gradients_escaped(self) -> None:
        for birth in self._births.born:
            if birth.phase == "backward":
                self._births.escape((birth,), "a parameter's gradient")

    def _tell(self, birth: OpBirth, skipped: bool, scale: tuple[float, float] | None) -> list[Event]:
        birth.told = True
        names = self._words.names(birth)
        if self._allow.permits(names, kinds_of(birth.bits)):
            return []
        if birth.phase == "backward" and self._told_step:
            self.counts["consequences"] += 1
            return []
        if birth.phase == "backward" or birth.call.bits & int(CallBit.SCALES):
            if skipped and self._skips_in_a_row < SKIPS_EXPECTED:
                self.counts["skips"] += not self._skip_counted
                self._skip_counted = True
                return [self._words.event(birth, "info", self._batch, note=expected_skip(scale))]
            behind = self._births.behind_node(birth)
            if behind is not None:
                behind.told = True
                return [self._error(behind, "its own backward made the first bad gradient", trap=True)]
        return [self._error(birth)]

    def _error(self, birth: OpBirth, note: str | None = None, *, trap: bool = False) -> Event:
        step = birth.blamed_in = self._births.step
        self._begin(birth.seq, lambda: birth.n_carried if birth.carried_in == step else 0)
        n_bad = len(self._from_start)
        return self._words.event(birth, "error", self._batch, note=note, trap=trap, bad_from_start=n_bad)

    def _begin(self, seq: int, n_later: Callable[[], int]) -> None:
        self._told_step = self._told_any = True
        self._after.begin(seq, later=lambda: (0, n_later()), bad_before=lambda: self.bad_values)

    def _unexplained(self, stage: int) -> list[Event]:
        """Bad gradients or parameters that no observed call accounts for (a compiled backward, say)."""
        if any(b.told or b.escaped for b in self._births.born):
            return []
        if any(int(rec["site"]) not in self._known_grads for rec in self._bad_grads):
            rec, phase = max(self._bad_grads, key=lambda r: int(r["site"])), "backward"
        elif stage >= 2 and (new := [r for r in self._bad_values if self._turned_bad(r)]):
            rec, phase = new[0], "optimizer"
        else:
            return []
        self._begin(int(rec["seq"]), lambda: 0)  # which calls came after it is not known: it was no call that made it
        return [self._words.unexplained(rec, phase, self._batch, len(self._bad_grads))]

    def _turned_bad(self, rec: Any) -> bool:
        """Whether this is news. A buffer that holds Inf may be a bound, or a best value so far."""
        site = int(rec["site"])
        if site in self._known_values or site in self._from_start:
            return False
        return self._sites[site].kind is SiteKind.PARAM or bool(record_bits(rec) & int(Holds.NAN))

    def _end_step(self, scaler: bool, skipped: bool) -> list[Event]:
        events = self._mention(self._births.born)
        self._after.close_step(self._births.explained)
        for rec in self._bad_values:
            if self._told_any or int(rec["site"]) not in self._from_start:  # nobody has been told of it so far
                self._known_values[int(rec["site"])] = record_bits(rec)
        if scaler:
            self._skips_in_a_row = self._skips_in_a_row + 1 if skipped else 0
        self._births.begin_step()
        self._known_grads = {int(rec["site"]) for rec in self._bad_grads} if self._told_any else set()
        self._bad_grads, self._bad_values = [], []
        self._told_step = self._skip_counted = False
        return events

    def _mention(self, births: list[OpBirth]) -> list[Event]:
        """What became of those that got nowhere."""
        events: list[Event] = []
        for birth in sorted(births, key=lambda b: b.seq):
            if birth.told or birth.culprit is not birth:
                continue
            if birth.lost_at is not None and not self._told_step and not birth.selected:
                birth.told = True
                if self._allow.permits(self._words.names(birth), kinds_of(birth.bits)):
                    continue
                events.append(self._words.event(birth, "warning", self._batch, note=self._words.lost(birth)))
            elif birth.role == "origin":
                key = (birth.call.op, birth.call.site, birth.call.line)
                self.counts["absorbed"] += 1
                if key not in self._told_sites:
                    self._told_sites.add(key)
                    events.append(self._words.event(birth, "info", self._batch, role="absorbed"))
        return events
