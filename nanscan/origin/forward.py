"""Which births of the forward pass are told: those whose value got out. The others wait, and may be told later."""

from __future__ import annotations

from nanscan.events.allow import AllowList
from nanscan.origin.births import DATA_CAUSE, Birth, births_of
from nanscan.origin.facts import NEG, POS, STRONG, BadCall, Fact, StepFacts
from nanscan.origin.state import MAX_PROVISIONAL, Memory, StepState
from nanscan.record import Phase
from nanscan.sites import SiteTable

MAX_WAITED = 8  # outermost calls that may end before a call inside one of them is known to have ended


class ForwardJudge:
    """Judges bad calls and bad checks of a step, in seq order."""

    def __init__(self, sites: SiteTable, memory: Memory, allow: AllowList) -> None:
        self._sites = sites
        self._memory = memory
        self._allow = allow

    def judge(self, state: StepState, final: bool, over: bool = False) -> list[Birth]:
        """Births to tell as errors. Unless `final`, only calls whose badness reached the outermost call are judged:
        of the others it is not known yet that they have ended. Unless the step is `over`, only calls of which all is
        recorded: another thread may be writing the rest."""
        checks, state.facts.checks = state.facts.checks, []
        told: list[Birth] = []
        for call in self._ready(state, final or bool(checks), over):
            while checks and checks[0].seq < call.seq:
                told += self._judge_check(state, checks.pop(0))
            told += self._judge_call(state, call)
        for check in checks:
            told += self._judge_check(state, check)
        return told

    def judge_before(self, state: StepState, seq: int) -> list[Birth]:
        """The same for the calls before `seq`, whatever became of them: they are about to be forgotten."""
        waiting = (*state.facts.absorbed.values(), *state.facts.pending.values())
        old = self._take_ready(state, [call for call in waiting if call.seq < seq])
        return [birth for call in old for birth in self._judge_call(state, call)]

    def _judge_call(self, state: StepState, call: BadCall) -> list[Birth]:
        told: list[Birth] = []
        if not state.explained:  # bounded work in steps that are bad for a known reason
            births = births_of(state.facts, self._sites, call)
            told += [self._first_reader(state, birth) for birth in births if self._judge_birth(state, birth)]
        return told + self._unexplained(state, call)

    def _ready(self, state: StepState, final: bool, over: bool) -> list[BadCall]:
        facts = state.facts
        if final:
            ready = sorted([*facts.absorbed.values(), *facts.pending.values()], key=lambda call: call.seq)
        else:
            ready = [call for call in facts.pending.values() if facts.climb(call)[1] is not None]
        return self._take_ready(state, [call for call in ready if call.linked or over])

    def _take_ready(self, state: StepState, ready: list[BadCall]) -> list[BadCall]:
        facts = state.facts
        for call in ready:
            facts.pending.pop(call.call, None)
            facts.absorbed.pop(call.call, None)
        return [call for call in ready if not (call.recompute and call.site in facts.forward_sites)]

    def finish_forward(self, state: StepState) -> None:
        """An outermost call has ended: what has waited long is not looked at any more until the step's last judgement,
        or each forward of a step that never ends would cost more than the one before."""
        facts = state.facts
        for call in list(facts.pending.values()):
            call.waited += 1
            if call.waited > MAX_WAITED:
                facts.absorbed[call.call] = facts.pending.pop(call.call)

    def _judge_birth(self, state: StepState, birth: Birth) -> bool:
        """Whether to tell it now as an error."""
        if not birth.weak and self._explained(state, birth):
            state.explained = True
            self._memory.learn(birth.params)
            return False
        if not birth.weak and self._follows_update(state, birth.seq):
            return False
        if state.explained:
            return False
        if self._allow.permits(birth.names, birth.fact.kinds):
            state.allowed = True
            return False
        self._memory.learn(birth.params)
        # An Inf that was told explains the NaN made of it (a mask is not told); told data explains its later readers.
        explained = (birth.after_inf & POS and state.told) or (birth.after_inf and state.told_overflow)
        explained = explained or (state.told_check is not None and birth.seq > state.told_check)
        if explained or (birth.data_of and birth.data_of in state.told_data_of):
            self._memory.counts["consequences"] += 1
            return False
        if birth.weak or not escaped(state.facts, birth):
            self._wait(state, birth)
            return False
        return self.tell(state, birth)

    @staticmethod
    def _first_reader(state: StepState, birth: Birth) -> Birth:
        """Bad data is told of by whoever read it first, who may have waited for the root to show that it got out."""
        waiting = (other for other in state.provisional if birth.data_of and other.data_of == birth.data_of)
        first = next(waiting, None)
        if first is None:
            return birth
        state.provisional.remove(first)
        return first

    def _wait(self, state: StepState, birth: Birth) -> None:
        """Keep it for what may still show its harm. One of an earlier forward makes room, best of the same site."""
        waiting = state.provisional
        if len(waiting) >= MAX_PROVISIONAL:
            begin = state.facts.enters[-1][0] if state.facts.enters else 0
            earlier = [other for other in waiting if other.seq < begin]
            if not earlier:
                return
            waiting.remove(next((other for other in earlier if other.site == birth.site), earlier[0]))
            self._memory.counts["absorbed"] += 1
        waiting.append(birth)

    def _explained(self, state: StepState, birth: Birth) -> bool:
        """Whether something told in an earlier step is the reason."""
        if birth.carried and self._memory.told_any:
            return True
        return state.poisoned or any(fact.site in state.known for fact in birth.params)

    def _follows_update(self, state: StepState, seq: int) -> bool:
        """Whether an update of the same step had left bad parameters behind by then; counts it if so."""
        if not state.spoiled(seq):
            return False
        if state.told:
            self._memory.counts["consequences"] += 1
        else:
            state.explained = True
        return True

    def tell(self, state: StepState, birth: Birth) -> bool:
        """Mark as told. False if this site was told in this step already."""
        key = (birth.site, birth.role)
        if key in state.told_sites:
            self._memory.counts["consequences"] += 1
            return False
        state.told_sites.add(key)
        if birth.data_of:
            state.told_data_of.add(birth.data_of)
        state.told = True
        state.told_overflow |= birth.fact.bits == NEG
        return True

    def _unexplained(self, state: StepState, call: BadCall) -> list[Birth]:
        """An outermost call that returned NaN or +Inf though nothing judged so far accounts for it."""
        if call.parent or call.recompute or not call.bits & STRONG:
            return []
        state.explained |= state.poisoned or (state.spoiled(call.seq) and not state.told)
        if state.consequence or state.allowed:
            return []
        birth = earliest_reaching(state, call.call)
        if birth is not None:
            state.provisional.remove(birth)
            birth.notes.append("its -Inf is the only thing that explains what the outermost call returned")
        else:
            site, fact = self._sites[call.site], next(out for out in call.outputs if out.bits & STRONG)
            birth = Birth(
                call.seq, "origin", "forward", call.site, site.module, site.module_type, fact, call,
                output_index=fact.index, inputs=dict(state.facts.inputs.get(call.call, {})), op=site.op,
                notes=["where it was made is not on record (records may have been dropped)"],
            )  # fmt: skip
        return [birth] if self.tell(state, birth) else []

    def _judge_check(self, state: StepState, check: Fact) -> list[Birth]:
        site = self._sites[check.site]
        if self._allow.permits((site.tensor, site.module), check.kinds):
            state.allowed = True
            return []
        if state.poisoned or (state.spoiled(check.seq) and not state.told):
            state.explained = True
        if state.consequence:
            self._memory.counts["consequences"] += 1
            return []
        birth = self._behind_check(state, check)
        if birth is None:
            phase = Phase(check.phase or Phase.FORWARD).name.lower()
            birth = Birth(
                check.seq, "origin", phase, check.site, site.module, site.module_type, check, tensor=site.tensor
            )
            birth.notes.append("nothing bad was recorded before this check in the step")
        else:
            birth.notes.append(f"seen at {site.label}")
        if not self.tell(state, birth):
            return []
        state.told_check = check.seq
        return [birth]

    def _behind_check(self, state: StepState, check: Fact) -> Birth | None:
        """The earlier birth that a check has caught, if there is one."""
        site, facts = self._sites[check.site], state.facts
        if site.module is None:  # after the model: only what the outermost call returned can have come here
            return _take(state, earliest_reaching(state, None, before=check.seq))
        root = facts.enter_before(check.seq)
        begin = 0 if root is None else root[0]
        for birth in sorted(state.provisional, key=lambda b: b.seq):
            if begin < birth.seq < check.seq and (not birth.weak or check.bits == NEG):
                return _take(state, birth)
        given = {} if root is None else facts.inputs.get(root[1], {})
        for fact in given.values():
            if fact.seq < check.seq and fact.bits & check.bits:
                return Birth(
                    check.seq, "external", "data", fact.site, site.module, site.module_type, fact,
                    reader=site.label, tensor=f"input {fact.index}", cause=DATA_CAUSE, data_of=fact.call,
                )  # fmt: skip
        return None


def escaped(facts: StepFacts, birth: Birth) -> bool:
    """Whether the value got to the output of an outermost call as NaN or +Inf."""
    if birth.start is None:
        return False
    top = facts.climb(birth.start)[1]
    return top is not None and bool(top.bits & STRONG)


def earliest_reaching(state: StepState, top_call: int | None, before: int | None = None) -> Birth | None:
    """The earliest waiting birth that reached an outermost call's output; one that is more than -Inf comes first."""
    found = []
    for birth in state.provisional:
        top = None if birth.start is None else state.facts.climb(birth.start)[1]
        if top is not None and top_call in (None, top.call) and (before is None or top.seq < before):
            found.append(birth)
    return min(found, key=lambda birth: (birth.weak, birth.seq), default=None)


def earliest_inside(state: StepState, module: str) -> Birth | None:
    """The earliest waiting birth in `module` or a module inside it that is more than -Inf."""
    inside = [b for b in state.provisional if not b.weak and b.module is not None and is_inside(b.module, module)]
    return min(inside, key=lambda birth: birth.seq, default=None)


def is_inside(module: str, outer: str) -> bool:
    return outer == "" or module == outer or module.startswith(f"{outer}.")


def _take(state: StepState, birth: Birth | None) -> Birth | None:
    if birth is not None:
        state.provisional.remove(birth)
    return birth
