"""Origin at module granularity: feed flagged records, ask at safe points, get the events that can be told by then.

A step is judged in the order of its passes: forward, backward, optimizer. The first culprit is told once; what follows
from it is counted. What did not escape by the end of the step is mentioned as info, once per site.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from nanscan.events.aftermath import Aftermath
from nanscan.events.allow import AllowList
from nanscan.events.event import Event
from nanscan.origin import backward, optimizer
from nanscan.origin.after import AftermathWatch
from nanscan.origin.births import Birth
from nanscan.origin.facts import STRONG, StepFacts
from nanscan.origin.forward import ForwardJudge, earliest_inside, earliest_reaching
from nanscan.origin.narrate import Narrator, ShapeOf
from nanscan.origin.neighbour import Neighbours
from nanscan.origin.state import MAX_FINDINGS, SKIPS_EXPECTED, Finding, Memory, StepState, expected_skip
from nanscan.record import Flag, Phase
from nanscan.sites import SiteTable

MAX_POISONED = 256  # records looked at in a step whose parameters were bad to begin with

POINTS = ("forward", "backward", "optimizer", "boundary")


class ModuleOrigin:
    """Judges one session's records.

    Args:
        sites: names of the sites. shape_of: shape id -> shape. rank: put into events.
        allow: what the user expects; an allowed origin is counted there and hides nothing that comes later.
        seen_good: the sites whose value in the running step was finite and not all zero. Tells a backward between
            modules that was good from one that nobody watched; without it every parameter is taken to have a gradient.
        after: counts what followed the first error; shared by the judges of one scanner.
    """

    def __init__(
        self,
        sites: SiteTable,
        shape_of: ShapeOf,
        rank: int = 0,
        *,
        allow: AllowList | None = None,
        seen_good: Callable[[], Collection[int]] | None = None,
        clock: Callable[[], float] = time.time,
        after: AftermathWatch | None = None,
    ) -> None:
        self._sites = sites
        self._memory = Memory(sites)
        self._allow = AllowList() if allow is None else allow
        self._forward = ForwardJudge(sites, self._memory, self._allow)
        self._narrator = Narrator(sites, shape_of, rank, clock)
        self._seen_good = seen_good
        self._state = self._new_state()
        self._neighbours = Neighbours(sites)
        self._after = AftermathWatch(sites) if after is None else after

    @property
    def counts(self) -> Counter[str]:
        """ "repeats", "skips", "absorbed", "consequences" so far."""
        return self._memory.counts

    @property
    def aftermath(self) -> Aftermath | None:
        """What followed the first error; None while there is none."""
        return self._after.so_far(self._state.explained)

    @property
    def wants_healthy_steps(self) -> bool:
        """Whether ENTER records of a healthy step are wanted too: parameters are known to be bad, and only a forward
        that ran and stayed good can show that they were repaired. Otherwise a healthy step need not be fed."""
        return bool(self._memory.known)

    @property
    def bad_values(self) -> dict[int, int]:
        """Sites of the parameters and buffers that were left non-finite, with their bits."""
        return {**dict.fromkeys(self._memory.from_start, STRONG), **self._memory.known}

    @property
    def told_any(self) -> bool:
        """Whether an error was told."""
        return self._memory.told_any

    def take_over(self, bad_values: dict[int, int], told_any: bool) -> None:
        """A step begins here that followed others judged elsewhere: what was bad by then explains itself."""
        self._memory.known.update(bad_values)
        self._memory.told_any |= told_any
        self._state = self._new_state()

    def feed(self, records: np.ndarray) -> None:
        """Take flagged records of the running step, in seq order; any number of pieces."""
        # Left over from a step at op level, by a thread that was amid an op as it ended.
        records = records[(records["flags"] & (Flag.CALL | Flag.OP)) == 0]
        if self._state.poisoned:
            records = _thinned(records, MAX_POISONED - self._state.facts.n_records)
        if len(records):
            self._state.facts.add(records)

    def witness(self, records: np.ndarray) -> None:
        """All records of a step in which something is bad, healthy ones too; before decide()."""
        self._after.witness(records)
        if not self._state.poisoned:
            self._neighbours.add(records)

    def decide(
        self, point: str, *, scaler: bool = False, skipped: bool = False, scale: tuple[float, float] | None = None
    ) -> list[Event]:
        """Events that can be told at this safe point, in order; each is returned once.

        Args:
            point: "forward" (an outermost call has ended), "backward" (a backward pass has), "optimizer" (parameters
                were scanned after its step), "boundary" (the step is over; its state is dropped).
            scaler: a GradScaler drives the step, so backward findings wait for its verdict.
            skipped: that verdict: the optimizer's step was left out. scale: the loss scale then, and after update().
        """
        if point not in POINTS:
            raise ValueError(f"decide(point={point!r}): use one of {', '.join(map(repr, POINTS))}")
        state = self._state
        if scaler and skipped:
            self._after.skip(self._memory.skips_in_a_row + 1, scale)
        if not state.facts.n_records and point != "boundary":
            if point == "optimizer":
                self._optimizer_ran()
            return []
        stage = POINTS.index(point)
        events = [self._error(birth) for birth in self._forward.judge(state, final=stage >= 1, over=stage == 3)]
        if stage >= 1:
            self._collect_backward()
            verdict = not scaler or stage >= 2
            events += self._resolve(verdict, scaler and skipped, scale, last=stage == 3)
        if stage >= 2 or (stage == 1 and not scaler and self._gradients_changed()):  # before the update, if it can be
            events += self._judge_optimizer(point, scaler and skipped, scale)
        if point == "boundary":
            return events + self._close_step(scaler, skipped)
        if point == "forward":
            self._forward.finish_forward(state)
            state.facts.finish_forward()
        return events + self._forget_old()

    def _forget_old(self) -> list[Event]:
        """Keep a step that never ends from growing: what is long over is treated as if its step had ended."""
        state, events = self._state, list[Event]()
        state.forget_repeats()
        cut = state.facts.overdue()
        if cut:
            events += self._settle(cut)
            events += [self._error(birth) for birth in self._forward.judge_before(state, cut)]
            events += self._settle(cut)
            self._after.forget(state.facts.forget_calls(cut))
        return events

    # ---- backward

    def _collect_backward(self) -> None:
        state = self._state
        grads = state.facts.take_grads()
        fresh = [f for f in state.facts.param_grads[state.n_param_grads :] if f.phase != Phase.OPTIMIZER]
        state.n_param_grads = len(state.facts.param_grads)
        finding = backward.find(state.facts, self._sites, grads, fresh, self._seen_good)
        if finding is None:
            return
        if state.poisoned or (state.spoiled(finding.birth.seq) and not state.told):
            state.explained = True
        if state.consequence:
            self._memory.counts["consequences"] += 1
        elif len(state.findings) < MAX_FINDINGS:
            state.findings.append(finding)

    def _resolve(self, verdict: bool, skipped: bool, scale: tuple[float, float] | None, last: bool) -> list[Event]:
        """Tell, drop or keep the backward findings, now that a little more is known of what became of them."""
        state, memory, events = self._state, self._memory, list[Event]()
        if not verdict:
            return events
        waiting, state.findings = state.findings, []
        for finding in waiting:
            reached = finding.enters_root or finding.n_param_grads or state.facts.param_grads
            reached = bool(reached or optimizer.newly_bad(state, memory))
            if state.consequence:
                memory.counts["consequences"] += 1
            elif self._allow.permits(finding.birth.names, finding.birth.fact.kinds):
                state.allowed = True
            elif skipped and memory.skips_in_a_row < SKIPS_EXPECTED:
                events += self._skip(finding.birth, scale)
            elif reached:
                if skipped:
                    n = memory.skips_in_a_row + 1
                    finding.birth.notes.append(
                        f"the loss scaler has skipped {n} steps in a row: its scale has collapsed"
                    )
                events += self._tell(self._promoted(finding))
            elif last:
                finding.birth.notes.append("the bad gradient was dropped before it reached a parameter")
                events += self._info(finding.birth, "absorbed")
            else:
                state.findings.append(finding)
        return events

    def _promoted(self, finding: Finding) -> Birth:
        """The forward birth behind a bad gradient, if one waits that fits; else the backward birth itself."""
        state, blamed = self._state, finding.birth
        if finding.enters_root:
            birth = earliest_reaching(state, None)
            note = "it reached the root's output, and the gradient that enters there is bad"
        else:
            birth = None if blamed.module is None else earliest_inside(state, blamed.module)
            note = "the forward pass absorbed it, but the gradient through the same place is bad"
        if birth is None:
            if finding.n_param_grads and blamed.tensor is None:
                blamed.notes.append(f"bad parameter gradients after it: {finding.n_param_grads}")
            return blamed
        state.provisional.remove(birth)
        birth.notes.append(note)
        return birth

    def _skip(self, birth: Birth, scale: tuple[float, float] | None) -> list[Event]:
        state = self._state
        if not state.skip_counted:
            self._memory.counts["skips"] += 1
            state.skip_counted = True
        birth.notes.append(expected_skip(scale))
        return self._info(birth, birth.role)

    # ---- optimizer

    def _judge_optimizer(self, point: str, skipped: bool, scale: tuple[float, float] | None) -> list[Event]:
        state, memory, events = self._state, self._memory, list[Event]()
        new_values = state.facts.values[state.n_values :]
        memory.from_start.update(f.site for f in new_values if f.phase in (Phase.NONE, Phase.DATA))
        found = optimizer.judge(state, memory, self._sites) if state.n_judged_optimizer < self._n_optimizer() else []
        state.n_judged_optimizer = self._n_optimizer()
        state.n_values = len(state.facts.values)
        for birth, severity in found:
            if state.poisoned and birth.phase == "optimizer":
                state.explained = True
            if state.consequence:
                memory.counts["consequences"] += 1
            elif self._allow.permits(birth.names, birth.fact.kinds):
                state.allowed = True
            elif skipped:
                events += self._skip(birth, scale)
            elif severity == "error":
                events += self._tell(birth)
            elif severity == "warning":
                events.append(self._narrator.event(state.facts, birth, "warning"))
            else:  # taken for a start value: whoever reads it and goes bad shall be told
                memory.from_start.add(birth.site)
                events += self._info(birth, birth.role)
        learned = [f for f in new_values if f.phase == Phase.OPTIMIZER and f.site not in memory.from_start]
        memory.learn(learned)
        if learned and memory.poisoned and not state.poisoned and state.spoiled_at is None:
            state.spoiled_at = learned[-1].seq
        if point == "optimizer":
            self._optimizer_ran()
        return events

    def _gradients_changed(self) -> bool:
        """Whether bad gradients came up that were good at the end of backward."""
        return any(fact.phase == Phase.OPTIMIZER for fact in self._state.facts.param_grads)

    def _optimizer_ran(self) -> None:
        self._state.optimizer_ran = True
        self._memory.optimizer_passes += 1
        self._after.update_over()

    def _n_optimizer(self) -> int:
        return len(self._state.facts.values) + len(self._state.facts.param_grads)

    # ---- end of a step

    def _close_step(self, scaler: bool, skipped: bool) -> list[Event]:
        state, memory, events = self._state, self._memory, list[Event]()
        events += self._settle(None)
        if state.explained:
            memory.counts["repeats"] += 1
        if state.facts.enters and not state.facts.bad_forward:  # went right with bad parameters: they explain nothing
            if state.optimizer_ran:
                seen = {fact.site for fact in state.facts.values}
                memory.known = {site: bits for site, bits in memory.known.items() if site in seen}
            memory.inert = {site for site in memory.known if site in state.known}
        if scaler:
            memory.skips_in_a_row = memory.skips_in_a_row + 1 if skipped else 0
        self._after.close_step(state.explained)
        self._neighbours.forget()
        self._state = self._new_state()
        return events

    def _settle(self, before: int | None) -> list[Event]:
        """Mention the births that did not escape; with `before`, only those that are older."""
        state, events = self._state, list[Event]()
        settled = [birth for birth in state.provisional if before is None or birth.seq < before]
        state.provisional = [birth for birth in state.provisional if before is not None and birth.seq >= before]
        for birth in settled:
            if birth.role == "external" and not birth.params:
                continue  # bad input that did no harm is the user's business
            self._memory.counts["absorbed"] += 1
            reached = birth.start is not None and state.facts.climb(birth.start)[1] is not None
            events += self._info(birth, birth.role if birth.weak and reached else "absorbed")
        return events

    def _new_state(self) -> StepState:
        memory = self._memory
        return StepState(StepFacts(self._sites), poisoned=memory.poisoned, known=frozenset(memory.known))

    # ---- telling

    def _error(self, birth: Birth) -> Event:
        state, memory = self._state, self._memory
        event = self._narrator.event(state.facts, birth, "error")
        memory.told_any = True
        self._after.begin(
            birth.seq,
            later=lambda: (sum(call.seq > birth.seq for call in state.facts.calls.values()), 0),
            bad_before=lambda: state.known | memory.from_start,
        )
        return replace(event, clean_before=self._neighbours.before(state.facts, birth))

    def _tell(self, birth: Birth) -> list[Event]:
        return [self._error(birth)] if self._forward.tell(self._state, birth) else []

    def _info(self, birth: Birth, role: str) -> list[Event]:
        key = (birth.site, role)
        if key in self._memory.told_infos:
            return []
        self._memory.told_infos.add(key)
        return [self._narrator.event(self._state.facts, birth, "info", role)]


def _thinned(records: np.ndarray, room: int) -> np.ndarray:
    """The first `room` records, and those that say which forward ran and what the optimizer left behind."""
    keep = (records["flags"] & Flag.ENTER != 0) | (records["phase"] == Phase.OPTIMIZER)
    keep[: max(room, 0)] = True
    return records[keep]
