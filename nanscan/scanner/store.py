"""Events in memory, bounded however long the run."""

from __future__ import annotations

from collections import Counter

from nanscan.events.event import SEVERITIES, Event


class EventStore:
    """Keeps the earliest `max_events` of each severity; further ones are counted.

    The earliest matter most (the rest are mostly consequences), and a flood of infos must not push out an error.
    """

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.counts: Counter[str] = Counter()
        self._kept: dict[str, list[Event]] = {severity: [] for severity in SEVERITIES}

    def add(self, event: Event) -> None:
        self.counts[event.severity] += 1
        kept = self._kept[event.severity]
        if len(kept) < self.max_events:
            kept.append(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """All kept events, in order of step and sequence number."""
        merged = [event for kept in self._kept.values() for event in kept]
        return tuple(sorted(merged, key=lambda e: (e.step, e.seq)))

    @property
    def first(self) -> Event | None:
        """The earliest error; if there is none, the earliest warning."""
        for severity in ("error", "warning"):
            if self._kept[severity]:
                return min(self._kept[severity], key=lambda e: (e.step, e.seq))
        return None

    @property
    def suppressed(self) -> int:
        """Events that were counted but not kept."""
        return sum(self.counts.values()) - sum(len(kept) for kept in self._kept.values())
