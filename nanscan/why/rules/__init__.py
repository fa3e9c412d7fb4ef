"""The rules, one file per family."""

from __future__ import annotations

from nanscan.why.rule import Rule
from nanscan.why.rules import division, domain, gradients, overflow, reductions, training, unmade

ALL: tuple[Rule, ...] = (
    *domain.RULES,
    *division.RULES,
    *overflow.RULES,
    *reductions.RULES,
    *gradients.RULES,
    *training.RULES,
    *unmade.RULES,
)
