"""The rules, one file per family."""

from __future__ import annotations

from nanscan.why.rule import Rule
from nanscan.why.rules import domain

ALL: tuple[Rule, ...] = (*domain.RULES,)
