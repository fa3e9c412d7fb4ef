"""Evidence in numbers: how a rule says what it saw."""

from __future__ import annotations

from nanscan.record import TensorStats
from nanscan.why.situation import Arg


def got(arg: Arg, what: str) -> str | None:
    """"0 at the first bad place" or "3 zeros among 12"; None where there is no zero (or negative number, "negative")."""
    at = arg.at
    if at is not None:
        hit = at == 0 if what == "zero" else at < 0
        return f"{at:.6g}" if hit else None
    stats = arg.seen
    if stats is None:
        return None
    if what == "zero":
        return f"{stats.zero} zeros among {stats.numel} elements" if stats.zero else None
    return f"numbers down to {stats.min:.6g}" if stats.min < 0 else None


def largest(stats: TensorStats) -> str:
    return f"{stats.absmax:.3g}"
