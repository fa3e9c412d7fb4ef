"""What a cause rule is: a principle of arithmetic or of PyTorch, with the predicate that recognises it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanscan.why.situation import Situation

Evidence = tuple[str, ...]  # what the rule saw, in numbers; short sentences, the telling one first
Predicate = Callable[[Situation], Evidence | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause.

    Args:
        id: "NS101"; the hundreds are the family. Never given to another cause once it was released.
        cause: one of the closed vocabulary that `Event.cause` speaks.
        when: what it saw if it applies to a situation, None if not. Never raises for a situation it does not know.
        why: two to four sentences: what happens, and why it gives this value.
        remedy: what to do, one line of at most 90 columns, code first.
        example: a program that goes wrong in this way and no other. It ends with ``scanner`` closed.
        rank: when several rules apply the highest names the cause, and the others are listed. 50 for a rule that looks
            at the op and its arguments; more for one that knows better; below 35 for one that would fit many ops, and
            is left out where any other applies. A companion of a higher rank than the winner's gives the remedy.
        cause_of: a more exact name for some situations (the overflow of another element type).
        companion: says something beside the cause (where the value was hidden, say), and never names it itself.
    """

    id: str
    cause: str
    when: Predicate
    why: str
    remedy: str
    example: str
    rank: int = 50
    companion: bool = False
    cause_of: Callable[[Situation], str] | None = None
    ops: frozenset[str] = frozenset()
    """Bare names of the ops, or of the forward ops of the autograd nodes, that it may apply to; empty for any."""


def ops(names: str) -> frozenset[str]:
    """Names separated by blanks, as `Rule.ops` wants them."""
    return frozenset(names.split())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of one situation.

    Args:
        cause: of the winning rule, "unknown" where none applies.
        rule: its id, None where none applies.
        evidence: what it saw; where none applies, the facts that are known.
        remedy: its remedy, None where none applies.
        others: causes of the other rules that apply, the most specific first.
    """

    cause: str = "unknown"
    rule: str | None = None
    evidence: Evidence = ()
    remedy: str | None = None
    others: tuple[str, ...] = ()
