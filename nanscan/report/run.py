"""A whole run as read back from its logs: the first culprit over all ranks, the first anomaly of each, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanscan.events.aftermath import Aftermath
from nanscan.events.event import Event
from nanscan.events.jsonable import encode
from nanscan.events.read import RunLog
from nanscan.report.culprit import first_culprit_lines, warning_before
from nanscan.report.draw import note_lines
from nanscan.report.healthy import Watched, healthy_lines
from nanscan.report.warning import warning_lines

SCHEMA = 1


@dataclass(slots=True)
class Report:
    """Decided data.

    Args:
        first: the first culprit: the earliest error over all ranks, else the earliest warning.
        per_rank: (rank, first of that rank). older: logs of earlier runs in the same folder, not looked at.
        warned: the last warning before it, on its rank.
        notes: what the scanners said of themselves at their end.
        unfinished: ranks whose log has no end line: still running, or died.
    """

    first: Event | None = None
    per_rank: list[tuple[int, Event | None]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    watched: Watched = field(default_factory=Watched)
    after: Aftermath | None = None
    warned: Event | None = None
    unfinished: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    older: int = 0

    @classmethod
    def from_logs(cls, logs: Sequence[RunLog]) -> Report:
        """Decide what a folder of logs says. Of several processes with one rank and restart the latest counts."""
        kept = _latest(logs)
        report = cls(older=len(logs) - len(kept))
        for log in kept:
            rank = log.rank or 0
            report.per_rank.append((rank, log.first))
            report.counts.update(_hits(log))
            report.problems += log.problems
            report.notes += [str(note) for note in (log.end or {}).get("notes", ()) if note not in report.notes]
            if log.end is None:
                report.unfinished.append(rank)
        report.watched = _watched(kept)
        firsts = [(log, log.first) for log in kept]
        for severity in ("error", "warning"):
            found = [(log, e) for log, e in firsts if e is not None and e.severity == severity]
            if found:
                log, report.first = min(found, key=lambda f: (f[0].restart or 0, f[1].step, f[1].time, f[1].seq))
                report.after = _aftermath(log)
                report.warned = warning_before(report.first, log.events) if severity == "error" else None
                break
        return report


def report_lines(report: Report, *, next_step: str | None = None) -> list[str]:
    """The block a terminal shows: the first culprit, or two lines."""
    if report.first is None:
        lines = healthy_lines(report.watched, next_step=next_step)
    elif report.first.severity == "warning":
        lines = warning_lines(report.first, world_size=report.watched.ranks, next_step=next_step)
    else:
        lines = first_culprit_lines(
            report.first,
            after=report.after,
            warned=report.warned,
            world_size=report.watched.ranks,
            next_step=next_step,
        )
    return lines + note_lines(report.notes)


def to_json(report: Report) -> dict[str, Any]:
    """For machines: strict JSON values, NaN and Inf as strings."""
    return {
        "schema": SCHEMA,
        "healthy": report.first is None,
        "first": None if report.first is None else report.first.to_dict(),
        "after": encode(report.after),
        "warned": None if report.warned is None else report.warned.to_dict(),
        "ranks": [
            {"rank": rank, "first": None if event is None else event.to_dict()} for rank, event in report.per_rank
        ],
        "counts": dict(report.counts),
        "watched": encode(report.watched),
        "unfinished": report.unfinished,
        "older_logs": report.older,
        "problems": report.problems,
        "notes": report.notes,
    }


def _latest(logs: Iterable[RunLog]) -> list[RunLog]:
    latest: dict[tuple[int | None, int | None], RunLog] = {}
    for log in logs:
        key = (log.restart, log.rank)
        if key not in latest or _began(log) >= _began(latest[key]):
            latest[key] = log
    return list(latest.values())


def _began(log: RunLog) -> float:
    return log.began if log.began is not None else log.path.stat().st_mtime


def _hits(log: RunLog) -> Counter[str]:
    counts: Counter[str] = Counter()
    severity = {event.key: event.severity for event in log.events}
    for key, n in log.hits.items():
        counts[severity[key]] += n
    return counts


def _watched(logs: Sequence[RunLog]) -> Watched:
    start = next((log.start for log in logs if log.start), {})
    ends = [log.end for log in logs if log.end]
    steps = max((_int(end, "steps") for end in ends), default=0)
    steps = steps or max((event.step + 1 for log in logs for event in log.events), default=0)
    return Watched(
        steps=steps,
        ranks=max(len({log.rank for log in logs}), _int(start, "world_size")),
        modules=_int(start, "n_modules"),
        parameters=_int(start, "n_params"),
        level=str(start.get("level", "module")),
        **{
            name: sum(_int(end, name) for end in ends) for name in ("skips", "allowed", "infos", "dropped", "unscanned")
        },
    )


def _aftermath(log: RunLog) -> Aftermath | None:
    data = (log.end or {}).get("after")
    return Aftermath.from_dict(data) if isinstance(data, dict) else None


def _int(data: dict[str, Any], name: str) -> int:
    value = data.get(name, 0)
    return int(value) if isinstance(value, (int, float)) else 0
