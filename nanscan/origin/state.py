"""What the judges remember: within a step (StepState) and across steps (Memory). Both are bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nanscan.origin.births import Birth
from nanscan.origin.facts import STRONG, BadGrad, Fact, StepFacts
from nanscan.sites import SiteKind, SiteTable

SKIPS_EXPECTED = 16  # a loss scale halves at each skip: 2**16 down to 1 takes as many; more in a row is a collapse
MAX_PROVISIONAL = 256


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
        judged, n_grads, n_param_grads, n_checks: how far the judges got.
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
    judged: set[int] = field(default_factory=set)
    n_grads: int = 0
    n_param_grads: int = 0
    n_checks: int = 0
    n_values: int = 0
    n_judged_optimizer: int = 0
    provisional: list[Birth] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    told_sites: set[tuple[int, str]] = field(default_factory=set)
    told_data_of: set[int] = field(default_factory=set)
    told_tops: set[int] = field(default_factory=set)
    optimizer_ran: bool = False
    skip_counted: bool = False

    @property
    def consequence(self) -> bool:
        """Whether what is found from here on needs no telling."""
        return self.told or self.explained

    def new_grads(self) -> list[BadGrad]:
        """Bad gradients since the last call."""
        new = self.facts.grads[self.n_grads :]
        self.n_grads = len(self.facts.grads)
        return new
