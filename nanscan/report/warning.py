"""Warnings: what is going wrong without a NaN or Inf yet (growth, dead units), and Inf lost by arithmetic."""

from __future__ import annotations

from dataclasses import replace

from nanscan.events.event import Event
from nanscan.report.culprit import also_fits, cause_words, decide_culprit, remedy_words
from nanscan.report.draw import Block, draw

DEFAULT_NEXT = "scanner.events lists every warning"


def warning_lines(event: Event, *, world_size: int = 1, next_step: str | None = None) -> list[str]:
    """Terminal lines for one warning: ``nanscan: WARNING  explosion  step 52  backward`` and rows."""
    return draw(decide_warning(event, world_size=world_size, next_step=next_step))


def decide_warning(event: Event, *, world_size: int = 1, next_step: str | None = None) -> Block:
    """The same as plain data. A health event says what it saw in its first evidence sentence."""
    if event.nonfinite:
        block = decide_culprit(event, world_size=world_size, next_step=next_step)
        return replace(
            block, title=f"nanscan: WARNING  {event.kind} in {event.place}  step {event.step}  {event.phase}"
        )
    said, facts = (event.evidence[0], event.evidence[1:]) if event.evidence else (f"{event.kind} at {event.place}", ())
    rank = f"  rank {event.rank}/{world_size}" if world_size > 1 else ""
    return Block(
        f"nanscan: WARNING  {event.kind}  step {event.step}{rank}  {event.phase}",
        (
            ("where", event.place),
            ("what", said),
            ("facts", "; ".join(facts)),
            ("why", cause_words(event)),
            ("next", next_step or remedy_words(event, DEFAULT_NEXT)),
        ),
        extra=also_fits(event),
    )
