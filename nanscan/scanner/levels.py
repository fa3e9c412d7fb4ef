"""Which level a step is watched at, and who judges it there.

The level is the scanner's own, what `schedule` answers, or op level for a few steps after an anomaly that only a module
could be named for ("escalate"). It changes at step boundaries only.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import torch

from nanscan.config import Options
from nanscan.errors import NanscanError, NanscanWarning
from nanscan.events.aftermath import Aftermath
from nanscan.events.allow import AllowList
from nanscan.events.event import Event
from nanscan.hooks.core import CoreSession
from nanscan.hooks.op_rules import masks
from nanscan.origin import ModuleOrigin, OpOrigin
from nanscan.origin.after import AftermathWatch, Past
from nanscan.scanner.clock import level_at
from nanscan.scanner.reaction import warn_user
from nanscan.sites import SiteTable

MAX_STEPS = 3  # op-level steps after an anomaly
MAX_TRIES = 3  # anomalies that are followed up, until one of them has given a verdict

REPLAY = "replay"  # the judge of replayed graphs, among those of levels

Origin = ModuleOrigin | OpOrigin


class Levels:
    """The levels of one scanner.

    Args:
        options: level, every, schedule and escalate are read. rank: put into events.
        past: what is known of healthy values.
    """

    def __init__(
        self, options: Options, sites: SiteTable, core: CoreSession, rank: int, allowed: AllowList, past: Past
    ) -> None:
        self._options = options
        self._sites = sites
        self._core = core
        self._rank = rank
        self._allowed = allowed
        self._origins: dict[str, Origin] = {}
        self._after = AftermathWatch(sites, past)  # one for all levels, so that none forgets what another has told
        self._level = options.level  # the running step's, or the last one's if it is not scanned
        self._steps_left = 0  # of a follow-up
        self._tries = 0
        self._began = 0  # step of the anomaly that is followed up
        self._first_step: int | None = None  # of the follow-up
        self._last_step = 0
        self._replayed = False  # some graph, since the last step's end
        self._possible = options.escalate and options.level == "module"
        self.notes: list[str] = []
        self.verdict: Event | None = None  # what a follow-up found

    @property
    def origin(self) -> Origin:
        """The judge of the running step."""
        return self._origins[self._level]

    @property
    def counts(self) -> Counter[str]:
        """What all judges counted."""
        return sum((origin.counts for origin in self._origins.values()), Counter())

    @property
    def aftermath(self) -> Aftermath | None:
        """What followed the first error; None while there is none."""
        after = self.origin.aftermath
        return self._origins[REPLAY].aftermath if after is None and REPLAY in self._origins else after

    def plan(self, step: int) -> str | None:
        """Level of a step that begins; None: it is not scanned. Asks the schedule, so once per step."""
        options = self._options
        level, asked_for = level_at(step, options.every, options.schedule, options.level)
        if level is not None and self._steps_left and not asked_for:
            return "op"
        return level

    def prepare(self, level: str | None) -> None:
        """The judge of the first step, before any hook is there. NanscanError when the compiled core is missing."""
        self._level = self._options.level if level is None else level
        self._origins[self._level] = self._make_origin(self._level)

    def begin(self, has_model: bool) -> None:
        """The first step begins. NanscanError when op level is wanted and another scanner has it."""
        self._core.has_model = has_model
        if "op" in (self._level, self._options.level):
            self._observe_ops()
        if self._level != "op":
            self._core.set_op_level(False)

    def change(self, step: int, level: str | None) -> None:
        """At a step boundary: `level` is that of the step that begins."""
        if level is None:
            return
        if self._steps_left and level == "op":
            self._steps_left -= 1
            self._last_step = step
            if self._first_step is None:
                self._first_step = step
        elif self._first_step is not None:
            self._end_follow_up()
        if level == self._level:
            return
        if level == "op" and not self._can_observe():
            return
        if level == "module":
            self._core.set_op_level(False)
        before = self.origin
        if level not in self._origins:
            self._origins[level] = self._make_origin(level)
        self._level = level
        self.origin.take_over(before.bad_values, any(origin.told_any for origin in self._origins.values()))

    def saw(self, events: list[Event], origin: Origin) -> None:
        """Events that `origin` has told; on a device they may be of a step before the running one."""
        errors = [event for event in events if event.severity == "error" and event.nonfinite]
        if not errors or not self._possible or self.verdict is not None:
            return
        if origin is self._origins.get("op"):
            if self._first_step is not None:
                self.verdict = errors[0]
                self._steps_left = 0
        elif not self._steps_left and self._tries < MAX_TRIES:
            origins = [event for event in errors if event.phase != "data"]  # bad data has no op to be named
            if origins:
                self._tries += 1
                self._steps_left, self._began = MAX_STEPS, origins[0].step

    def replay_origin(self, running: Origin) -> ModuleOrigin:
        """The judge of replayed graphs. It learns what the running steps' judge knows to be bad."""
        origin = self._origins.get(REPLAY)
        if origin is None:
            origin = self._origins[REPLAY] = ModuleOrigin(
                self._sites, self._core.shape, self._rank, allow=self._allowed
            )
        assert isinstance(origin, ModuleOrigin)
        self._replayed = True
        if running.bad_values or running.told_any:
            origin.take_over(running.bad_values, running.told_any)
        return origin

    def learn_from_replays(self, origin: Origin) -> None:
        """The other way round, between two steps: what replays have left bad is no news of the running program's."""
        if not self._replayed:
            return
        self._replayed, replays = False, self._origins[REPLAY]
        if replays.bad_values or replays.told_any:
            origin.take_over(replays.bad_values, replays.told_any)

    def finish(self) -> None:
        """The scanner closes."""
        if self._first_step is not None:
            self._end_follow_up()

    def _end_follow_up(self) -> None:
        assert self._first_step is not None
        first, last, self._first_step, self._steps_left = self._first_step, self._last_step, None, 0
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        began = f"op level ({steps}) after the anomaly of step {self._began}"
        if self.verdict is not None:
            found = f"names {self.verdict.op or self.verdict.place}"
            if self.verdict.source is not None:
                found += f" at {self.verdict.source}"
        elif self._origins["op"].bad_values:
            found = "found only what the parameters hold by now; enable(model, level='op') from the start names the op"
        else:
            found = "found nothing bad"
        self.notes.append(f"{began} {found}")

    def _can_observe(self) -> bool:
        try:
            self._observe_ops()
        except NanscanError as err:
            follow_up, self._possible, self._steps_left, self._first_step = self._steps_left > 0, False, 0, None
            note = f"stays at module level: {err}"
            if note not in self.notes:
                self.notes.append(note)
                if not follow_up and self._options.schedule is not None:  # asked for, and not to be had
                    warn_user(note, NanscanWarning)
            return False
        return True

    def _observe_ops(self) -> None:
        native = _native()
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        native.set_library_folders([own + os.sep, os.path.dirname(torch.__file__) + os.sep])
        native.set_op_rules(*masks())
        try:
            self._core.set_op_level(True)
        except ValueError:
            raise NanscanError(
                "level='op': another open scanner observes ops already, and they are observed for the whole process; "
                "close() that one first, or use level='module' here"
            ) from None

    def _make_origin(self, level: str) -> Origin:
        if level == "module":
            return ModuleOrigin(self._sites, self._core.shape, self._rank, allow=self._allowed, after=self._after)
        native = _native()
        return OpOrigin(
            self._sites,
            self._core.shape,
            native.op_name,
            native.line_text,
            self._rank,
            allow=self._allowed,
            compiled=_has_compiled,
            after=self._after,
        )


def _has_compiled() -> bool:
    """Has dynamo made a graph in this process? By a private name of torch; without it the answer is no."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", {})
    return bool(counters.get("stats", {}).get("unique_graphs", 0))


def _native() -> Any:
    from nanscan import backends

    native = backends.get().core
    if native is None:
        raise NanscanError(
            "level='op' needs the compiled core, and nanscan runs on plain PyTorch here "
            f"({backends.get().why}); mend that, or use level='module'"
        )
    return native
