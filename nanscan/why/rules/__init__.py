"""The rules, one file per family."""

from __future__ import annotations

from nanscan.why.rule import Rule
from nanscan.why.rules import division, domain, gradients, limits, overflow, reductions, training, unmade

ALL: tuple[Rule, ...] = (
    *domain.RULES,
    *division.RULES,
    *overflow.RULES,
    *limits.RULES,
    *reductions.RULES,
    *gradients.RULES,
    *training.RULES,
    *unmade.RULES,
)
