"""What the optimizer's step made bad, or what was made bad between backward and that step (clipping, unscaling)."""

from __future__ import annotations

from nanscan.origin.births import Birth
from nanscan.origin.facts import NAN, STRONG, Fact
from nanscan.origin.state import Memory, StepState
from nanscan.record import Phase
from nanscan.sites import SiteKind, SiteTable

Judged = tuple[Birth, str]  # with its severity


def newly_bad(state: StepState, memory: Memory) -> list[Fact]:
    """Parameters and buffers that hold NaN or +Inf after this step's optimizer, and did not when the step began."""
    return [
        fact
        for fact in state.facts.values
        if fact.phase == Phase.OPTIMIZER
        and fact.bits & STRONG
        and fact.site not in state.known
        and fact.site not in memory.from_start
    ]


def judge(state: StepState, memory: Memory, sites: SiteTable) -> list[Judged]:
    """Births at the optimizer's step, the first of each sort, in seq order. Called with backward judged."""
    grads = state.facts.param_grads
    before = [fact for fact in grads if fact.phase != Phase.OPTIMIZER]
    found: list[Judged] = []
    if grads and not before:
        found.append((_of_gradient(sites, grads), "error"))
    new = newly_bad(state, memory)
    parameters = [fact for fact in new if sites[fact.site].kind is SiteKind.PARAM]
    buffers = [fact for fact in new if sites[fact.site].kind is SiteKind.BUFFER]
    if parameters and not grads:
        found.append((_of_parameter(sites, parameters), "error"))
    if buffers and not parameters and not grads and not state.facts.bad_forward:
        # A buffer that starts out as Inf (a running minimum) or full of NaN ("not measured yet") is how people write
        # them. One that was finite before anything ran, and is NaN in places after the first step, was computed.
        birth = _of_buffer(sites, buffers)
        computed = bool(birth.fact.bits & NAN) and bool(birth.fact.rec["n_nan"] < birth.fact.rec["n"])
        started = memory.optimizer_passes == 0 and not computed
        found.append((birth, "info" if started else "error" if birth.fact.bits & NAN else "warning"))
    return sorted(found, key=lambda item: item[0].seq)


def _of_gradient(sites: SiteTable, grads: list[Fact]) -> Birth:
    fact = min(grads, key=lambda f: f.seq)
    site = sites[fact.site]
    birth = Birth(fact.seq, "origin", "optimizer", fact.site, None, None, fact, tensor=site.tensor)
    birth.notes.append(
        f"{site.label} was finite at the end of backward and is bad at the optimizer's step: "
        "clipping, unscaling or other code in between changed it"
    )
    return birth


def _of_parameter(sites: SiteTable, parameters: list[Fact]) -> Birth:
    fact = min(parameters, key=lambda f: f.seq)
    birth = Birth(fact.seq, "origin", "optimizer", fact.site, None, None, fact, tensor=sites[fact.site].tensor)
    birth.notes.append(
        "every parameter gradient of the step was finite: the update itself made it (learning rate, eps, state)"
    )
    if len(parameters) > 1:
        birth.notes.append(f"{len(parameters)} parameters turned bad in this update")
    return birth


def _of_buffer(sites: SiteTable, buffers: list[Fact]) -> Birth:
    fact = min(buffers, key=lambda f: f.seq)
    site = sites[fact.site]
    birth = Birth(
        fact.seq, "origin", "forward", fact.site, site.module, site.module_type, fact, tensor=site.tensor
    )  # fmt: skip
    birth.notes.append(f"buffer {site.tensor} turned bad while every module output of the step was finite")
    return birth
