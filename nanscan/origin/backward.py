"""Who is to blame for the first bad gradient of a backward pass.

All gradients recorded before it were good, so the node that made it lies between this value and the values whose
gradients came before: in the module that read the value, or in the code around the module that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nanscan.origin.births import Birth
from nanscan.origin.facts import BadGrad, Fact, Party, StepFacts
from nanscan.origin.state import Finding
from nanscan.sites import Site, SiteKind, SiteTable

SeenGood = Callable[[], Collection[int]]


def find(
    facts: StepFacts,
    sites: SiteTable,
    grads: list[BadGrad],
    param_grads: list[Fact],
    seen_good: SeenGood | None = None,
) -> Finding | None:
    """The finding of one pass, from its bad value gradients and bad parameter gradients in seq order."""
    if grads:
        return _of_value(facts, sites, grads[0], len(param_grads))
    if param_grads:
        return _of_parameters(sites, param_grads, seen_good)
    return None


def _of_value(facts: StepFacts, sites: SiteTable, grad: BadGrad, n_param_grads: int) -> Finding:
    enters_root, site, notes, reader = False, None, [], None
    if grad.readers:
        party = _innermost_reader(grad.readers)
        site = sites[party.site]
        notes.append(f"the gradient of what {site.label} read is bad; every gradient before it was finite")
        if len(grad.readers) > 1:
            names = ", ".join(dict.fromkeys(sites[p.site].label for p in grad.readers))
            notes.append(f"the value was read by {names}")
    elif grad.producers:
        party = _outermost(grad.producers)
        maker = sites[party.site]
        reader = None
        if party.parent_call:
            site = sites[party.parent_site]
            notes.append(
                f"the gradient reaching the output of {maker.label} is bad, and no watched module read that output"
            )
        else:
            # A call with no parent: the root, or a block that is run again inside backward (checkpointing).
            root = _entered_root(facts, sites, maker)
            enters_root, site = root is None, root
            notes.append(f"bad gradient enters the root's output ({maker.label})" if enters_root
                         else f"the gradient reaching the output of {maker.label} is bad")  # fmt: skip
    fact = grad.fact
    birth = Birth(
        fact.seq, "origin", "backward", fact.site, None if site is None else site.module,
        None if site is None else site.module_type, fact, notes=notes, reader=reader,
        op=None if site is None else site.op,
    )  # fmt: skip
    return Finding(birth, n_param_grads, enters_root)


def _of_parameters(sites: SiteTable, param_grads: list[Fact], seen_good: SeenGood | None) -> Finding:
    """Bad parameter gradients, and no bad gradient between modules: it was made where a parameter is used, or nobody
    watched (a compiled backward has no nodes to hook)."""
    # Gradients of parameters are scanned in one go, so seq says nothing: the last in site order is closest to the loss.
    fact = max(param_grads, key=lambda f: f.site)
    site = sites[fact.site]
    n = len({f.site for f in param_grads})
    notes, everywhere = [], _everywhere(sites, param_grads, seen_good)
    if everywhere:
        notes.append(
            f"all {n} parameter gradients are bad and no gradient between modules was seen bad: born in the loss "
            "code, or in a compiled backward, which is not watched at this level"
        )
        if all(int(f.rec["n_nan"]) == int(f.rec["n"]) for f in param_grads):
            notes.append("every element of them is NaN, as after clip_grad_norm_ with a single bad one")
    elif n > 1:
        notes.append(f"{n} parameter gradients are bad, while no gradient between modules is")
    else:
        notes.append(f"only {site.label} is bad, no gradient between modules is")
    birth = Birth(
        fact.seq, "origin", "backward", fact.site, None if everywhere else site.module,
        None if everywhere else site.module_type, fact, tensor=site.tensor, notes=notes,
    )  # fmt: skip
    return Finding(birth, len(param_grads), enters_root=everywhere)


def _everywhere(sites: SiteTable, param_grads: list[Fact], seen_good: SeenGood | None) -> bool:
    """Whether every gradient of several modules is bad, in a backward that was not watched between them."""
    bad = {fact.site for fact in param_grads}
    if len({sites[i].module for i in bad}) < 2:
        return False
    if seen_good is None:
        return all(i in bad for i in range(len(sites)) if sites[i].kind is SiteKind.PARAM_GRAD)
    gradients = (SiteKind.GRAD_OUTPUT, SiteKind.GRAD_INPUT, SiteKind.PARAM_GRAD)
    return not any(sites[i].kind in gradients and i not in bad for i in seen_good())


def _innermost_reader(readers: list[Party]) -> Party:
    """Outermost reader first, then inwards while exactly one reader runs inside the current one."""
    current = _outermost(readers)
    while True:
        inner = [party for party in readers if party.parent_call == current.call]
        if len(inner) != 1:
            return current
        current = inner[0]


def _outermost(parties: list[Party]) -> Party:
    calls = {party.call for party in parties}
    return next((party for party in parties if party.parent_call not in calls), parties[0])


def _entered_root(facts: StepFacts, sites: SiteTable, maker: Site) -> Site | None:
    """The root around `maker`, if `maker` is a module inside one that ran in this step."""
    for _, _, _, root_site in facts.enters:
        root = sites[root_site]
        if maker.module == root.module:
            return None
        if root.module == "" or (root.module and maker.module and maker.module.startswith(f"{root.module}.")):
            return root
    return None
