"""The "after" row: what the first error has done to the step, to the parameters, and to later steps."""

from __future__ import annotations

from nanscan.events.aftermath import Aftermath
from nanscan.events.event import Event
from nanscan.report.numbers import magnitude, plural


def consequences(event: Event, after: Aftermath) -> list[str]:
    """Short sentences, the most important first; only what is so."""
    parts = [_same_step(after), _clipping(after), _left_bad(event, after), _skipped(after)]
    if after.later_steps:
        parts.append(f"{plural(after.later_steps, 'later step')} bad because of it, not shown")
    return [part for part in parts if part]


def _same_step(after: Aftermath) -> str:
    counted = []
    if after.outputs:
        counted.append(plural(after.outputs, "later module output"))
    if after.ops:
        counted.append(plural(after.ops, "later op"))
    if after.gradients:
        total = f"/{after.n_gradients}" if after.n_gradients else ""
        counted.append(f"{after.gradients}{total} parameter gradients")
    return f"{' and '.join(counted)} bad in the same step" if counted else ""


def _clipping(after: Aftermath) -> str:
    total = f" of {after.n_gradients}" if after.n_gradients else ""
    if after.spread_to > after.spread_from:
        return f"clipping spread it from {after.spread_from} to {after.spread_to}{total} gradients"
    if after.zeroed:
        others = "the other gradient" if after.zeroed == 1 else f"the other {after.zeroed} gradients"
        return f"clipping by an infinite norm has set {others} to 0"
    return ""


def _left_bad(event: Event, after: Aftermath) -> str:
    named = []
    if after.parameters and not (event.phase == "optimizer" and after.parameters == 1):
        named.append(plural(after.parameters, "parameter"))
    if after.buffers:
        named.append(plural(after.buffers, "buffer"))
    said = [f"{' and '.join(named)} left bad"] if named else []
    if after.last_clean is not None and (after.parameters or after.buffers):
        said.append(f"last clean step: {after.last_clean}")
    return "; ".join(said)


def _skipped(after: Aftermath) -> str:
    if not after.skipped:
        return ""
    if after.skips_in_a_row:
        to = "" if after.scale_to is None else f" to {_scale(after.scale_to)}"
        return f"the step was skipped; the loss scale has collapsed{to} after {after.skips_in_a_row} skips in a row"
    if after.scale_from is None or after.scale_to is None:
        return "the step was skipped"
    return f"the step was skipped; the loss scale goes from {_scale(after.scale_from)} to {_scale(after.scale_to)}"


def _scale(x: float) -> str:
    """Powers of two are known by their digits: ``65536``, not ``6.55e+04``."""
    return f"{x:.0f}" if x == int(x) and x < 1e9 else magnitude(x)
