"""From a judged birth to the Event a user reads: statistics, chain, evidence in numbers, and what to do next."""

from __future__ import annotations

from collections.abc import Callable

from nanscan.events.event import Event
from nanscan.origin.births import MEMORY_CAUSE, Birth
from nanscan.origin.facts import NEG, POS, BadCall, StepFacts, fresh
from nanscan.origin.remedy import remedy
from nanscan.record import DType, TensorStats, stats_from_record
from nanscan.sites import Site, SiteKind, SiteTable
from nanscan.why import Situation, Verdict, explain

MAX_CHAIN = 8
MAX_INPUTS = 8
NEAR_OVERFLOW = 0.1  # of the dtype's largest number
MAX_BACK = 64  # calls that a bad value is followed back

_TENSOR_KINDS = {
    SiteKind.PARAM: "parameter",
    SiteKind.PARAM_GRAD: "gradient",
    SiteKind.BUFFER: "buffer",
    SiteKind.CHECK: "check",
    SiteKind.INPUT: "input",
}

ShapeOf = Callable[[int], tuple[int, ...]]


class Narrator:
    """Builds events; knows names and shapes, judges nothing."""

    def __init__(self, sites: SiteTable, shape_of: ShapeOf, rank: int, clock: Callable[[], float]) -> None:
        self._sites = sites
        self._shape_of = shape_of
        self._rank = rank
        self._clock = clock

    def event(self, facts: StepFacts, birth: Birth, severity: str, role: str | None = None) -> Event:
        rec = birth.fact.rec
        stats = stats_from_record(rec)
        role = role or birth.role
        inputs = {
            f"input {i}": stats_from_record(birth.inputs[i].rec)
            for i in sorted(birth.inputs)[:MAX_INPUTS]
            if birth.inputs[i] is not birth.fact
        }
        chain, n_later = self._chain(facts, birth) if birth.phase in ("forward", "data") else ((), 0)
        maker, made = self._made_of(facts, birth)
        evidence = [_held(birth, stats, self._sites[birth.fact.site]), *birth.notes, *made]
        evidence += [*_about_inputs(birth, inputs), *_near_overflow(stats, inputs)]
        if n_later:
            evidence.append(f"{n_later} later module outputs are bad in the same step")
        verdict = self._verdict(birth, stats, inputs)
        evidence[1:1] = verdict.evidence if verdict.rule is not None else ()  # sizes are among the rest already
        shape = int(rec["shape"])
        device = int(rec["device"])
        return Event(
            severity=severity,
            kind=stats.kind if stats.kind != "none" else "nan",
            role=role,
            phase=birth.phase,
            module=birth.module,
            module_type=birth.module_type,
            op=birth.op,
            output_index=birth.output_index,
            step=int(rec["step"]),
            batch=facts.batch_at(birth.seq),
            rank=self._rank,
            device="cpu" if device < 0 else f"cuda:{device}",
            dtype=stats.dtype,
            shape=tuple(self._shape_of(shape)) if shape else None,
            stats=stats,
            inputs=inputs,
            tensor=birth.tensor,
            tensor_kind=None if birth.tensor is None else _TENSOR_KINDS.get(self._sites[birth.fact.site].kind),
            reader=birth.reader,
            last_clean=birth.last_clean,
            chain=chain,
            evidence=tuple(evidence),
            first_bad_index=stats.first_bad_index,
            cause=verdict.cause,
            rule=verdict.rule,
            others=verdict.others,
            remedy=remedy(birth, self._sites, facts.batch_at(birth.seq), maker),
            seq=birth.seq,
            time=self._clock(),
        )

    def _verdict(self, birth: Birth, stats: TensorStats, inputs: dict[str, TensorStats]) -> Verdict:
        """What can be said of the cause when no op is known."""
        if birth.role == "external" and birth.cause == "unknown" and not birth.params:
            return Verdict()
        situation = Situation(
            op=birth.op,
            phase=birth.phase,
            role=birth.role,
            kinds=birth.fact.kinds,
            out=stats,
            inputs=tuple(inputs.values()),
            tensor=birth.tensor if birth.params else None,
            last_clean=birth.last_clean or ("its first sighting" if birth.cause == MEMORY_CAUSE else None),
        )
        verdict = explain(situation)
        return verdict if birth.cause in ("unknown", verdict.cause) else Verdict(birth.cause)

    def _chain(self, facts: StepFacts, birth: Birth) -> tuple[tuple[str, ...], int]:
        """Labels from the origin to the outermost output it reached, and how many bad outputs came after it."""
        if birth.start is None:
            return (), 0
        path, top = facts.climb(birth.start)
        end = path[-1] if top is None else top
        later = [call for call in facts.calls.values() if birth.start.seq < call.seq <= end.seq]
        first = birth.tensor if birth.role == "external" and birth.tensor else self._sites[birth.start.site].label
        if birth.role == "external":
            later = [birth.start, *later]
        labels = list(dict.fromkeys([first, *(self._sites[call.site].label for call in later)]))
        if len(labels) > MAX_CHAIN:
            labels = [*labels[: MAX_CHAIN - 1], labels[-1]]
        return tuple(labels), len(later)

    def _made_of(self, facts: StepFacts, birth: Birth) -> tuple[Site | None, list[str]]:
        """Who had made the Inf that a NaN came out of: mostly the place to look at. (A mask is not told by itself.)"""
        if birth.role != "origin" or not birth.after_inf or birth.start is None:
            return None, []
        call = self._handed_over(facts, birth.start, birth.seq)
        for _ in range(MAX_BACK):
            if call is None:
                break
            if fresh(call.bits, facts.bad_inputs(call.call) | facts.outputs_before(call.call, call.seq)):
                maker, bits = self._sites[call.site], call.bits & birth.after_inf
                kinds = [name for bit, name in ((POS, "+Inf"), (NEG, "-Inf")) if bits & bit]
                return (maker, [f"it had {' and '.join(kinds)} at hand, made by {maker.label}"] if kinds else [])
            call = self._handed_over(facts, call, call.seq)
        return None, []

    def _handed_over(self, facts: StepFacts, call: BadCall, before: int) -> BadCall | None:
        """The call that the bad value inside `call` came from: the last bad child, else the maker of a bad input."""
        children = [child for child in facts.children.get(call.call, ()) if child.seq < before]
        if children:
            return children[-1]
        inputs = facts.inputs.get(call.call, {})
        sources = (call.producers[i][1] for i, fact in sorted(inputs.items()) if fact.bits and i in call.producers)
        return next((facts.calls[source] for source in sources if source in facts.calls), None)


def _held(birth: Birth, stats: TensorStats, site: Site) -> str:
    name = site.label if birth.tensor is not None and birth.tensor == site.tensor else birth.tensor
    what = {
        "external": name or "the tensor",
        "origin": name or ("the gradient" if birth.phase == "backward" else None),
    }.get(birth.role)
    if what is None:
        what = "the tensor" if birth.output_index is None else f"output[{birth.output_index}]"
    return holds(what, stats)


def holds(what: str, stats: TensorStats) -> str:
    """``output[0] holds 3 NaN among 12 elements``."""
    return f"{what} holds {stats.counted()} among {stats.numel} elements"


def _about_inputs(birth: Birth, inputs: dict[str, TensorStats]) -> list[str]:
    if birth.role != "origin" or not inputs:
        return []
    bad = [f"{name} holds {stats.nonfinite} non-finite values" for name, stats in inputs.items() if stats.nonfinite]
    if bad:
        return bad
    largest = max((stats.absmax for stats in inputs.values() if stats.absmax == stats.absmax), default=None)
    if largest is None or largest == float("inf"):
        return []
    return [f"its inputs were finite, max|x| {largest:.3g}"]


def _near_overflow(stats: TensorStats, inputs: dict[str, TensorStats]) -> list[str]:
    if not (stats.posinf or stats.neginf):
        return []
    found = []
    for name, some in (("the finite rest", stats), *inputs.items()):
        share = some.absmax / DType.from_torch_name(some.dtype).max_finite
        if NEAR_OVERFLOW <= share <= 1:
            near = f"{share:.2g} of" if share < 0.995 else "at"
            found.append(f"max|x| of {name} is {some.absmax:.3g}, {near} the largest {some.dtype}")
    return found
