"""Why it happened: rules that look at the call that made the first bad value, and say its cause and the way out."""

from __future__ import annotations

from nanscan.why.catalogue import CAUSES, RULES, explain, rule
from nanscan.why.rule import Rule, Verdict
from nanscan.why.situation import Arg, Past, Situation

__all__ = ["CAUSES", "RULES", "Arg", "Past", "Rule", "Situation", "Verdict", "explain", "rule"]
