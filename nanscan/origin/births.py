"""Where a bad value was born, as far as module calls can tell. Judged from facts, not from what became of it.

Made in a module's forward: its output is bad in a way nothing it read or its children returned was.
Made in the code around a module: the module read a bad tensor that no watched module had returned.
Not made at all: bad root input, bad parameter, memory that changed with nobody seen writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nanscan.origin.facts import INF, NEG, STRONG, BadCall, Fact, StepFacts, fresh
from nanscan.record import DType, Flag
from nanscan.sites import NO_SITE, Site, SiteKind, SiteTable

MEMORY_CAUSE = "memory written outside the dispatcher"
DATA_CAUSE = "bad input data"


@dataclass(slots=True, eq=False)
class Birth:
    """A candidate for the first culprit.

    Args:
        fact: the record that shows it. site: what it is counted and rationed by.
        start: the call from which the value has to climb to escape; None if it cannot have.
        after_inf: bits of the Inf that somebody else had made and this NaN may be made of.
        weak: -Inf only. params: bad parameters that explain it. carried: came over from an earlier step.
    """

    seq: int
    role: str
    phase: str
    site: int
    module: str | None
    module_type: str | None
    fact: Fact
    start: BadCall | None = None
    reader: str | None = None
    last_clean: str | None = None
    tensor: str | None = None
    cause: str = "unknown"
    output_index: int | None = None
    inputs: dict[int, Fact] = field(default_factory=dict)
    params: list[Fact] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    after_inf: int = 0
    weak: bool = False
    carried: bool = False
    op: str | None = None  # the wrapped extension's function it was made or read in
    data_of: int = 0  # root call whose input it is

    @property
    def names(self) -> tuple[str | None, ...]:
        """What allow() patterns are matched against."""
        return (self.module, self.tensor, self.op)


def births_of(facts: StepFacts, sites: SiteTable, call: BadCall) -> Iterator[Birth]:
    """Every birth that this bad call is the first witness of, in the order in which they happened."""
    inputs = facts.inputs.get(call.call, {})
    for fact in (inputs[i] for i in sorted(inputs)):
        if fact.bits:
            birth = _of_input(facts, sites, call, fact)
            if birth is not None:
                yield birth
    context = facts.bad_inputs(call.call) | facts.outputs_before(call.call, call.seq)
    bits = fresh(call.bits, context)
    if bits:
        yield _made_in(sites, call, inputs, context, bits)


def _made_in(sites: SiteTable, call: BadCall, inputs: dict[int, Fact], context: int, bits: int) -> Birth:
    fact = next(out for out in call.outputs if out.bits & bits)
    site = sites[call.site]
    birth = Birth(
        call.seq, "origin", "forward", call.site, site.module, site.module_type, fact, call,
        output_index=fact.index, inputs=inputs, after_inf=context & INF, weak=_weak(call.bits, fact), op=site.op,
    )  # fmt: skip
    return _blame_parameters(sites, birth, call.params)


def _of_input(facts: StepFacts, sites: SiteTable, call: BadCall, fact: Fact) -> Birth | None:
    """Birth of a bad tensor that `call` read; None if whoever handed it over is judged on its own."""
    site = sites[call.site]
    from_site, from_call = call.producers.get(fact.index, (NO_SITE, 0))
    source = None if from_site == NO_SITE else sites[from_site]
    changed, known = bool(fact.flags & Flag.CHANGED), bool(fact.flags & Flag.KNOWN)
    made_by_module = known and not changed and source is not None and source.kind is SiteKind.OUTPUT
    if made_by_module and (from_call in facts.calls or facts.is_forgotten(from_call)):
        return None
    root_input = None if made_by_module else _root_input(facts, call, fact, from_site)
    if root_input is not None:
        return _external_input(facts, site, call, root_input, source, changed)
    birth = Birth(
        call.seq, "external", "forward", call.site + 1, site.module, site.module_type, fact, call,
        reader=site.label, tensor=f"input {fact.index}", inputs={fact.index: fact}, weak=fact.bits == NEG, op=site.op,
    )  # fmt: skip
    if changed:
        birth.cause, birth.last_clean = MEMORY_CAUSE, None if source is None else source.label
        return birth
    if made_by_module and source is not None and from_call < facts.first_call():
        birth.carried = True
        birth.notes.append(f"the value was kept from an earlier step, where {source.label} returned it")
        return birth
    return _made_around(facts, sites, call, fact)


def _made_around(facts: StepFacts, sites: SiteTable, call: BadCall, fact: Fact) -> Birth | None:
    """Nobody handed the value over: was it made by the code that called `call`, or does that code only pass it on?"""
    outer = facts.calls.get(call.parent)
    context = facts.outputs_before(call.parent, call.seq)
    given = facts.inputs.get(call.parent, {})
    if call.parent and outer is None:  # the enclosing call ended well, so what it was given is not on record
        root = facts.enter_before(call.seq)
        given = given or (facts.inputs.get(root[1], {}) if root is not None else {})
        context |= facts.all_outputs_before(call.seq)
    for parent_fact in given.values():
        context |= parent_fact.bits
    if not fresh(fact.bits, context):
        return None
    site: Site | None = sites[call.parent_site] if call.parent else None
    birth = Birth(
        call.seq, "origin", "forward", call.parent_site if call.parent else call.site + 1,
        None if site is None else site.module, None if site is None else site.module_type, fact,
        start=outer if call.parent else call, reader=sites[call.site].label, inputs=dict(given),
        after_inf=context & INF, weak=_weak(fact.bits, fact), op=None if site is None else site.op,
    )  # fmt: skip
    where = "outside every module" if site is None else f"in the code of {site.label}, between the modules it calls"
    birth.notes.append(f"made {where}: no watched module returned the tensor that {birth.reader} read")
    return birth if outer is None else _blame_parameters(sites, birth, outer.params)


def _root_input(facts: StepFacts, call: BadCall, fact: Fact, from_site: int) -> Fact | None:
    """The bad root input that `fact` is, if it is one."""
    if facts.is_root(call.call):
        # What one root returned and another reads is no input data. (Its tensor may be new: look at the kinds.)
        handed_over = not fresh(fact.bits, facts.outputs_before(0, call.seq))
        return None if handed_over and not fact.flags & Flag.CHANGED else fact
    if not fact.flags & Flag.KNOWN:
        return None
    # The forward that the call ran in: other threads' begin in between. Where that is not on record, by site and not by
    # call, since a batch that is used again is known from the step that used it first.
    roots = [r for r in reversed(facts.enters) if r[0] < call.seq and r[3] + 1 == from_site]
    around = facts.outermost_id(call)
    root = next((r for r in roots if r[1] == around), roots[0] if roots else None)
    given = [] if root is None else [known for known in facts.inputs.get(root[1], {}).values() if known.bits]
    return next((known for known in given if _alike(known, fact)), given[0] if given else None)


def _external_input(
    facts: StepFacts, site: Site, call: BadCall, root_input: Fact, source: Site | None, changed: bool
) -> Birth:
    changed = changed or bool(root_input.flags & Flag.CHANGED)
    return Birth(
        call.seq, "external", "data", root_input.site, site.module, site.module_type, root_input, call,
        reader=site.label, tensor=f"input {root_input.index}", inputs=dict(facts.inputs.get(root_input.call, {})),
        cause=MEMORY_CAUSE if changed else DATA_CAUSE, weak=root_input.bits == NEG, data_of=root_input.call,
        last_clean=source.label if changed and source is not None else None, op=site.op,
    )  # fmt: skip


def _blame_parameters(sites: SiteTable, birth: Birth, params: list[Fact]) -> Birth:
    """A module whose own parameter was bad when it ran did not make the value: the parameter did."""
    bad = [fact for fact in params if fact.bits & STRONG or birth.weak]
    if not bad:
        return birth
    site = sites[bad[0].site]
    birth.role, birth.tensor, birth.params, birth.site = "external", site.tensor, bad, bad[0].site
    birth.fact, birth.output_index, birth.inputs = bad[0], None, {}
    birth.reader = birth.reader or site.module
    birth.after_inf = 0
    birth.notes = [f"{site.tensor} was already bad when it was read"]
    return birth


def _weak(bits: int, fact: Fact) -> bool:
    """-Inf only, and not by overflow: a mask has moderate numbers beside it (or exactly the lowest finite one)."""
    if bits != NEG:
        return False
    low, high = float(fact.rec["min"]), float(fact.rec["max"])
    limit = DType(int(fact.rec["dtype"])).max_finite
    largest = max(abs(low), abs(high))
    return not (limit / 16 <= largest and -limit < low <= high)


def _alike(a: Fact, b: Fact) -> bool:
    return all(a.rec[name] == b.rec[name] for name in ("n", "n_nan", "n_posinf", "n_neginf", "first_bad"))
