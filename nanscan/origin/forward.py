"""Which births of the forward pass are told: those whose value got out. The others wait, and may be told later."""

from __future__ import annotations

from nanscan.events.allow import AllowList
from nanscan.origin.births import DATA_CAUSE, Birth, births_of
from nanscan.origin.facts import NEG, POS, STRONG, BadCall, Fact, StepFacts
from nanscan.origin.state import MAX_PROVISIONAL, Memory, StepState
from nanscan.record import Phase
from nanscan.sites import SiteTable


class ForwardJudge:
    """Judges bad calls and bad checks of a step, in seq order."""

    def __init__(self, sites: SiteTable, memory: Memory, allow: AllowList) -> None:
        self._sites = sites
        self._memory = memory
        self._allow = allow

    def judge(self, state: StepState, final: bool) -> list[Birth]:
        """Births to tell as errors. Unless `final`, only calls whose badness reached the outermost call are judged:
        of the others it is not known yet that they have ended."""
        checks = state.facts.checks[state.n_checks :]
        state.n_checks = len(state.facts.checks)
        told: list[Birth] = []
        ready = self._ready(state, final or bool(checks))
        for call in ready:
            while checks and checks[0].seq < call.seq:
                told += self._judge_check(state, checks.pop(0))
            if not state.explained:  # bounded work in steps that are bad for a known reason
                births = births_of(state.facts, self._sites, call)
                told += [birth for birth in births if self._judge_birth(state, birth)]
            told += self._unexplained(state, call)
        for check in checks:
            told += self._judge_check(state, check)
        return told

    def _ready(self, state: StepState, final: bool) -> list[BadCall]:
        facts = state.facts
        ready = [
            call
            for call in facts.calls.values()
            if call.call not in state.judged and (final or facts.climb(call)[1] is not None)
        ]
        state.judged.update(call.call for call in ready)
        seen = {call.site for call in facts.calls.values() if not call.recompute}
        return [call for call in ready if not (call.recompute and call.site in seen)]

    def _judge_birth(self, state: StepState, birth: Birth) -> bool:
        """Whether to tell it now as an error."""
        if not birth.weak and self._explained(state, birth):
            state.explained = True
            self._memory.learn(birth.params)
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
            if len(state.provisional) < MAX_PROVISIONAL:
                state.provisional.append(birth)
            return False
        return self.tell(state, birth)

    def _explained(self, state: StepState, birth: Birth) -> bool:
        """Whether something told in an earlier step is the reason."""
        if birth.carried and self._memory.told_any:
            return True
        return state.poisoned or any(fact.site in state.known for fact in birth.params)

    def tell(self, state: StepState, birth: Birth) -> bool:
        """Mark as told. False if this site was told in this step already."""
        key = (birth.site, birth.role)
        if key in state.told_sites:
            self._memory.counts["consequences"] += 1
            return False
        state.told_sites.add(key)
        if birth.data_of:
            state.told_data_of.add(birth.data_of)
        if birth.start is not None:
            top = state.facts.climb(birth.start)[1]
            if top is not None:
                state.told_tops.add(top.call)
        state.told = True
        state.told_overflow |= birth.fact.bits == NEG
        return True

    def _unexplained(self, state: StepState, call: BadCall) -> list[Birth]:
        """An outermost call that returned NaN or +Inf though nothing judged so far accounts for it."""
        if call.parent or call.recompute or not call.bits & STRONG:
            return []
        state.explained |= state.poisoned
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
                output_index=fact.index, inputs=dict(state.facts.inputs.get(call.call, {})),
                notes=["where it was made is not on record (records may have been dropped)"],
            )  # fmt: skip
        return [birth] if self.tell(state, birth) else []

    def _judge_check(self, state: StepState, check: Fact) -> list[Birth]:
        site = self._sites[check.site]
        if self._allow.permits((site.tensor, site.module), check.kinds):
            state.allowed = True
            return []
        if state.poisoned:
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
