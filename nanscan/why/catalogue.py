"""All rules, and how one of them is picked."""

from __future__ import annotations

from collections.abc import Iterator

from nanscan.why.rule import Evidence, Rule, Verdict
from nanscan.why.rules import ALL
from nanscan.why.rules.overflow import OVERFLOWS
from nanscan.why.situation import Situation
from nanscan.why.words import known_facts

RULES: tuple[Rule, ...] = tuple(sorted(ALL, key=lambda rule: rule.id))
CAUSES: tuple[str, ...] = (*dict.fromkeys((*(rule.cause for rule in RULES), *OVERFLOWS)), "unknown")
"""The closed vocabulary of `Event.cause`."""

FAMILIES = {
    "1": "Outside a function's domain",
    "2": "Overflow",
    "3": "Reductions, masks and losses",
    "4": "Gradients",
    "5": "Training: optimizer, clipping, loss scale",
    "6": "Values that no op made",
}
"""Heading of each family, by the first digit of a rule's number."""

FALLBACK = 35
"""Rules of a lower rank would fit many ops: they are asked where no other applies."""

_BY_ID = {rule.id: rule for rule in RULES}


def rule(id: str) -> Rule | None:
    """The rule of that id ("NS101", case does not matter), or None."""
    return _BY_ID.get(id.upper())


def explain(situation: Situation) -> Verdict:
    """What the rules say of a situation: the most specific one names the cause, the others are listed.

    Args:
        situation: what is known. What is not known makes rules silent, never wrong: cause "unknown" is an answer.
    """
    found = sorted(_matches(situation), key=lambda match: -match[0].rank)
    causes = [(one, seen) for one, seen in found if not one.companion]
    causes = [match for match in causes if match[0].rank >= FALLBACK] or causes
    beside = [(one, seen) for one, seen in found if one.companion]
    extra = tuple(text for _, seen in beside for text in seen[:1])
    if not causes:
        return Verdict(evidence=(*known_facts(situation), *extra), others=tuple(one.cause for one, _ in beside))
    best, evidence = causes[0]
    cause = best.cause if best.cause_of is None else best.cause_of(situation)
    others = dict.fromkeys(one.cause for one, _ in (*causes[1:], *beside) if one.cause != best.cause)
    remedy = beside[0][0].remedy if beside and beside[0][0].rank > best.rank else best.remedy
    return Verdict(cause, best.id, (*evidence, *extra), remedy, tuple(others))


def _matches(situation: Situation) -> Iterator[tuple[Rule, Evidence]]:
    for one in RULES:
        if one.ops and situation.name not in one.ops:
            continue
        seen = one.when(situation)
        if seen is not None:
            yield one, seen
