"""Scanner: what enable() returns. Owns the write side (core session, hooks) and the read side (origin, events, log)."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from nanscan import config
from nanscan.buffer import drain
from nanscan.errors import NanscanError
from nanscan.events.allow import AllowList
from nanscan.events.event import Event
from nanscan.events.log import EventLog
from nanscan.hooks.core import CoreSession, Tap
from nanscan.record import Flag, Phase
from nanscan.scanner.clock import StepClock
from nanscan.scanner.guard import UserCallbackError, guarded
from nanscan.scanner.health import HealthWatch
from nanscan.scanner.levels import Levels, Origin
from nanscan.scanner.loggers import what_hides_it
from nanscan.scanner.models import WatchedModels
from nanscan.scanner.reaction import Reaction
from nanscan.scanner.receiver import HookReceiver
from nanscan.scanner.replays import Replays
from nanscan.scanner.store import EventStore
from nanscan.scanner.summary import coverage_of, html_of, report_of, stats_of
from nanscan.scanner.timeline import Mark, Timeline
from nanscan.sites import SiteTable

log = logging.getLogger("nanscan")

MAX_UNFED = 128  # pieces kept of a step in which nothing is bad

# The records that the origin analysis reads once something is bad. Healthy outputs and gradients are history only.
_REPLAY = int(Flag.REPLAY)
_FLAGGED = int(Flag.BAD | Flag.INPUT | Flag.PARAM | Flag.LINK | Flag.ENTER | Flag.CHANGED | Flag.CALL)


class Scanner(HookReceiver):
    """Watches one program. Made by nanscan.enable(); also a context manager that closes it.

    Attributes `events`, `first`, `stats` and `coverage` are read-only snapshots; `report()` is for people.
    """

    def __init__(
        self,
        model: nn.Module | None,
        options: config.Options,
        core: CoreSession,
        allowed: AllowList,
        settings: config.Settings,
        growth: Mapping[str, Any] | None = None,
        on_close: Callable[[Scanner], None] = lambda scanner: None,
    ) -> None:
        self.options = options
        self.sites = SiteTable()
        self._core = core
        self._settings = settings
        self._allowed = allowed
        self._on_close = on_close
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._failure: str | None = None
        self._clock = StepClock(manual=options.clock == "manual")
        self._health = HealthWatch(self.sites, settings.rank, growth)
        self._levels = Levels(options, self.sites, core, settings.rank, allowed, self._health)
        self._store = EventStore(options.max_events)
        self._reaction = Reaction(self._guard_callback(options.on_anomaly), self._describe)
        self._timeline = Timeline()
        self._replays = Replays(HealthWatch(self.sites, settings.rank, growth))
        self._unfed: list[np.ndarray] = []  # flagged records of a step in which nothing is bad so far
        self._fed = False  # something was, in this step
        self._bad = False  # and not just a call that has to be judged to know
        self._scaled = False  # a GradScaler scaled a loss in this step
        self._skipped = False  # and its verdict was to skip the update
        self._scale: tuple[float, float] | None = None  # then: its scale, and the next one
        self._optimizer_seen = False
        self._n_bad_seen = 0
        self._owns: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._extensions: dict[int, Tap] = {}
        self._log: EventLog | None = None
        self._allowed_before = sum(allowance.count for allowance in allowed)
        try:
            level = self._plan(0)
        except UserCallbackError as carried:
            raise carried.cause from None
        core.active = level is not None
        self._levels.prepare(level)
        with self._lock:  # another thread may be running the model: its first hook waits here
            self._models = WatchedModels(self, model)
            self._version = self._models.version()
        if options.on_anomaly == "raise" or callable(options.on_anomaly):
            reference = weakref.ref(self)  # the core must not keep the scanner alive

            def backward_ended() -> None:
                scanner = reference()
                if scanner is not None:
                    scanner.backward_ended()

            core.set_backward_end(backward_ended)
        try:
            self._levels.begin(self._models.any)
        except NanscanError:
            self._models.remove()
            core.close()
            raise
        self._log = self._open_log()  # last: a scanner that is refused leaves no file
        core.scan_values(int(Phase.DATA))  # parameters that are bad before anything ran
        core.flush_device()  # nothing runs yet: a wait costs nobody anything, and every later look knows them

    # ---- what a user reads

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or by nanscan.disable()."""
        return self._closed

    @property
    def events(self) -> tuple[Event, ...]:
        """What was found so far, in order; at most `max_events` of each severity."""
        self.poll()
        return self._store.events

    @property
    def first(self) -> Event | None:
        """The first culprit: the earliest error, else the earliest warning, else None."""
        self.poll()
        return self._store.first

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: steps, batches, records, scans, dropped records, events by severity, allowed, loss-scale skips."""
        return stats_of(self)

    @property
    def coverage(self) -> dict[str, Any]:
        """What is observed and what is not: modules, skipped modules, parameters, tensors that could not be scanned."""
        return coverage_of(self)

    def report(self) -> str:
        """The first culprit as a block of text, or two lines when nothing is wrong."""
        self.flush()
        return report_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.report())

    def _repr_html_(self) -> str:
        self.flush()
        return html_of(self)

    # ---- what a user calls

    def poll(self) -> None:
        """Look at what has been recorded so far. Never blocks, never raises for an anomaly."""
        if not self._closed:
            self._quietly_process()

    def flush(self) -> None:
        """Look at everything there is so far, gradients that no hook has seen included."""
        if not self._closed:
            self._scan_grads_now()
            self._core.flush_device()
            self.poll()

    def step(self) -> None:
        """The training step is over. Needed with clock="manual"; with "auto" it ends a step that no optimizer ended."""
        self._require_open("step()")
        self._end_step(False)

    def close(self) -> None:
        """Take every hook off and finish the log. The events stay readable. A second close() is an error."""
        if self._failure is None:  # after a fault of ours it is closed already, and the caller is not to blame
            self._require_open("close()")
            self._finish()

    def __enter__(self) -> Scanner:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._closed:
            self._finish()

    # ---- inside

    @guarded
    def _scan_grads_now(self) -> None:
        self._core.scan_grads(int(Phase.BACKWARD))

    @guarded
    def _quietly_process(self) -> None:
        self._process("optimizer" if self._clock.update_done else "backward")

    def _process(self, point: str) -> None:
        """A point of the step is reached: drain, and let the origin analysis tell what can be told by now."""
        core, step = self._core, self._clock.step
        core.poll_device()
        met = core.take_unopened()
        if met:
            self._models.open_devices(index for index in range(32) if met >> index & 1)
        self._n_bad_seen = core.n_bad
        self._timeline.mark(
            Mark(core.position, point, step, self._scaled, self._skipped, self._levels.origin, self._scale)
        )
        for records, mark in self._timeline.cut(drain(core), core.drained):
            self._reach(records, mark)

    def _reach(self, records: np.ndarray, mark: Mark) -> None:
        """All that was recorded before `mark` is here."""
        origin = mark.origin
        replayed = (records["flags"] & _REPLAY) != 0
        if replayed.any():
            self._reach_replays(records[replayed], mark)
            records = records[~replayed]
        if len(records):
            self._health.add(records)
            flagged = records[(records["flags"] & _FLAGGED) != 0]
            if len(flagged):
                self._unfed.append(flagged)
                if len(self._unfed) > MAX_UNFED:  # a step that never ends; the latest forwards are those that count
                    del self._unfed[: MAX_UNFED // 2]
            if self._fed or (flagged["flags"] & int(Flag.BAD | Flag.CALL)).any():
                self._feed(origin)
                self._bad = self._bad or bool((flagged["flags"] & int(Flag.BAD)).any())
                if self._bad:
                    origin.witness(records)
        boundary = mark.point == "boundary"
        if boundary and self._unfed and origin.wants_healthy_steps:
            self._feed(origin)
        if self._fed or mark.point in ("optimizer", "boundary"):
            told = origin.decide(mark.point, scaler=mark.scaler, skipped=mark.skipped, scale=mark.scale)
            self._emit(told, origin)
        if boundary:
            self._emit(self._health.end_step(mark.step), origin)
            self._unfed.clear()
            self._fed = self._bad = False
            self._levels.learn_from_replays(origin)

    def _reach_replays(self, records: np.ndarray, mark: Mark) -> None:
        origin = self._levels.replay_origin(mark.origin)
        events = self._replays.take(records, origin, scaler=mark.scaler, skipped=mark.skipped)
        self._react(self._keep(events))  # nobody follows them up: a graph runs no other op than those it has captured

    def _feed(self, origin: Origin) -> None:
        for records in self._unfed:
            origin.feed(records)
        self._unfed.clear()
        self._fed = True

    @guarded
    def _end_step(self, forward_begins: bool) -> None:
        self._close_step(forward_begins)

    def _close_step(self, forward_begins: bool) -> None:
        self._core.scan_grads(int(Phase.BACKWARD))
        self._process("boundary")
        self._scaled = self._skipped = False
        self._scale = None
        self._forget_update()
        step = self._clock.end(forward_begins)
        self._core.end_step(step)
        level = self._plan(step)
        self._core.active = level is not None
        self._levels.change(step, level)
        self._core.reset_stack()
        self._reaction.safe_point(boundary=True)

    def _plan(self, step: int) -> str | None:
        try:
            return self._levels.plan(step)
        except Exception as err:
            raise UserCallbackError(err) from err

    def _emit(self, events: list[Event], origin: Origin) -> None:
        kept = self._keep(events)
        self._levels.saw(kept, origin)
        self._react(kept)

    def _keep(self, events: list[Event]) -> list[Event]:
        """Keep and log all of them first: what the user's callable or warning filter raises must lose none."""
        kept = []
        for event in events:
            if not event.nonfinite and self._allowed.permits_event(event):
                continue  # the origin analysis asks the allow list itself, before an allowed value can hide a later one
            if event.severity == "error" and event.nonfinite and not self._store.counts["error"]:
                event = replace(event, hidden_by=what_hides_it())
            self._store.add(event)
            if self._log is not None:
                self._log.event(event)
            kept.append(event)
        return kept

    def _react(self, events: list[Event]) -> None:
        for event in events:
            self._reaction.take(event)

    def _guard_callback(self, policy: Any) -> Any:
        if not callable(policy):
            return policy

        def call(event: Event) -> None:
            try:
                policy(event)
            except BaseException as err:
                raise UserCallbackError(err) from err

        return call

    def _describe(self, event: Event) -> str:
        return report_of(self, event)

    def _open_log(self) -> EventLog | None:
        if self.options.dir is None:
            return None
        distributed = self._settings.world_size > 1 or "RANK" in os.environ
        return EventLog(
            self.options.dir,
            self._settings.rank if distributed else None,
            self._settings.restart if distributed else None,
        )

    def write_start(self, facts: dict[str, Any]) -> None:
        """First line of the log: the world of this run."""
        if self._log is not None:
            self._log.write("start", facts)

    def _require_open(self, call: str) -> None:
        if self._closed and os.getpid() == self._pid:  # a forked child goes on with the parent's program
            raise NanscanError(f"{call} on a scanner that is already closed; call nanscan.enable(model) for a new one")

    def _finish(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._failure is None and os.getpid() == self._pid:
                self._quietly_close_step()
                self._levels.finish()
            self._closed = True
            self._models.remove()
            self._core.close()
            self._end_log()
        self._on_close(self)

    def _end_log(self) -> None:
        if self._log is not None:
            after, notes = self._levels.aftermath, self._levels.notes
            end = {
                **stats_of(self), "after": after, "failure": self._failure, "notes": notes, "time": time.time()
            }  # fmt: skip
            self._log.write("end", end)
            self._log.close()

    @guarded
    def _quietly_close_step(self) -> None:
        """The last step's verdict, without raising for it: a program that ends has nothing left to stop."""
        self._core.scan_grads(int(Phase.BACKWARD))
        self._core.flush_device()
        self._process("boundary")

    def abandon(self) -> None:
        """In a forked child: everything off, without a lock or a word, since the parent may have been amid anything."""
        self._closed = True
        self._core.abandon()
        self._models.abandon()

    def _fail(self, fault: Exception) -> None:
        self._failure = f"{type(fault).__name__}: {fault}"
        log.exception("nanscan: internal fault; this scanner is off, the program goes on")
        self._closed = True
        self._models.remove()
        self._core.close()
        self._end_log()
        self._on_close(self)
