"""What the judges remember: within a step (StepState) and across steps (Memory). Both are bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nanscan.origin.births import Birth
from nanscan.origin.facts import STRONG, Fact, StepFacts
from nanscan.sites import SiteKind, SiteTable

SKIPS_EXPECTED = 16  # a loss scale halves at each skip: 2**16 down to 1 takes as many; more in a row is a collapse
MAX_PROVISIONAL = 256
MAX_FINDINGS = 256  # backward passes of one step that went wrong and reached nothing so far
MAX_VALUES = 1024  # bad parameters, buffers and parameter gradients kept beyond the first of each


def expected_skip(scale: tuple[float, float] | None) -> str:
    """`scale`: the loss scale of the step, and what update() makes of it; None where that is not known."""
    if scale is None:
        return "expected loss-scale skip: the step was left out and the scale lowered"
    return (
        "expected loss-scale skip: the step was left out, and update() takes the loss scale "
        f"from {scale[0]:.10g} to {scale[1]:.10g}; nothing to do"
    )


@dataclass(slots=True)
class Memory:
    """Across steps.

    Args:
        known: sites of parameters and buffers that hold NaN or +Inf, with their bits.
        inert: those of them that some step went right with, so they explain nothing.
        from_start: parameters and buffers that were bad before training: the optimizer did not make them.
        told_infos: (site, role) already mentioned as info: once is enough.
        counts: "repeats" (steps bad only because of what was told before), "skips" (expected loss-scale skips),
            "absorbed", "consequences".
    """

    sites: SiteTable
    known: dict[int, int] = field(default_factory=dict)
    inert: set[int] = field(default_factory=set)
    from_start: set[int] = field(default_factory=set)
    told_infos: set[tuple[int, str]] = field(default_factory=set)
    told_any: bool = False
    skips_in_a_row: int = 0
    optimizer_passes: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def poisoned(self) -> bool:
        """Whether parameters themselves are bad, so that whatever goes wrong now is a consequence. (Bad buffers are
        looked at where a module reads them: running statistics are written in every step, and read in few.)"""
        return any(site not in self.inert and self.sites[site].kind is SiteKind.PARAM for site in self.known)

    def learn(self, facts: list[Fact]) -> None:
        for fact in facts:
            if fact.bits & STRONG:
                self.known[fact.site] = self.known.get(fact.site, 0) | fact.bits


@dataclass(slots=True)
class Finding:
    """What one backward pass went wrong with; `birth` says where. It waits until it is known what became of it."""

    birth: Birth
    n_param_grads: int
    enters_root: bool = False


@dataclass(slots=True)
class StepState:
    """Within a step.

    Args:
        poisoned, known: Memory's, as they were when the step began.
        told: an error of this step was told, so what follows is its consequence. told_overflow: one to -Inf only.
        told_check: seq of the first check that was told: modules that end later have what it saw.
        explained: this step is bad because of something told in an earlier one.
        spoiled_at: seq of what an update within the step left bad; None if none did. Such a step has several updates.
        n_param_grads, n_values, n_judged_optimizer: how far the judges got.
        provisional: births that have not escaped so far. findings: see Finding.
    """

    facts: StepFacts
    poisoned: bool = False
    known: frozenset[int] = frozenset()
    told: bool = False
    told_overflow: bool = False
    told_check: int | None = None
    explained: bool = False
    allowed: bool = False
    spoiled_at: int | None = None
    n_param_grads: int = 0
    n_values: int = 0
    n_judged_optimizer: int = 0
    n_kept: int = 0  # parameters, buffers and their gradients after the last forget_repeats()
    provisional: list[Birth] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    told_sites: set[tuple[int, str]] = field(default_factory=set)
    told_data_of: set[int] = field(default_factory=set)
    optimizer_ran: bool = False
    skip_counted: bool = False

    @property
    def consequence(self) -> bool:
        """Whether what is found from here on needs no telling."""
        return self.told or self.explained

    def spoiled(self, seq: int) -> bool:
        """Whether an update of this step had left bad parameters behind when `seq` was written."""
        return self.spoiled_at is not None and seq > self.spoiled_at

    def forget_repeats(self) -> None:
        """Keep the first of what came from one site, once it was judged and there is much of it."""
        facts = self.facts
        if len(facts.param_grads) + len(facts.values) <= self.n_kept + MAX_VALUES:
            return
        unseen = len(facts.param_grads) + len(facts.values) - self.n_judged_optimizer
        facts.param_grads = _firsts(facts.param_grads, self.n_param_grads)
        facts.values, n_new = _firsts(facts.values, self.n_values), len(facts.values) - self.n_values
        self.n_param_grads = len(facts.param_grads)
        self.n_values = len(facts.values) - n_new
        self.n_kept = len(facts.param_grads) + len(facts.values)
        self.n_judged_optimizer = self.n_kept - unseen


def _firsts(facts: list[Fact], n_judged: int) -> list[Fact]:
    """The first fact of each site and phase among the judged ones, and all others."""
    first: dict[tuple[int, int], Fact] = {}
    for fact in facts[:n_judged]:
        first.setdefault((fact.site, fact.phase), fact)
    return [*first.values(), *facts[n_judged:]]
