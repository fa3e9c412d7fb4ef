"""What a scanner says of itself: counters, coverage, the report's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanscan.events.event import Event
from nanscan.report import Watched, first_culprit_lines, healthy_lines, note_lines, warning_before, warning_lines

if TYPE_CHECKING:
    from nanscan.scanner.scanner import Scanner

HISTORY_STEPS = 5  # steps of "before" in a report


def stats_of(scanner: Scanner) -> dict[str, Any]:
    """The dict behind Scanner.stats, also the log's last line."""
    counters = scanner._core.counters()
    counts = scanner._store.counts
    return {
        "steps": scanner._clock.steps,
        "batches": counters["batches"],
        "records": counters["records"],
        "scans": counters["scans"],
        "dropped": counters["dropped"],
        "unscanned": sum(n for why, n in counters["unscanned"].items() if not _harmless(why)),
        "errors": counts["error"],
        "warnings": counts["warning"],
        "infos": counts["info"],
        "suppressed": scanner._store.suppressed,
        "allowed": sum(allowance.count for allowance in scanner._allowed) - scanner._allowed_before,
        "skips": scanner._levels.counts["skips"],
        "repeats": scanner._levels.counts["repeats"],
    }


def coverage_of(scanner: Scanner) -> dict[str, Any]:
    """The dict behind Scanner.coverage."""
    hooks = scanner._models.hooks
    return {
        "level": scanner.options.level,
        "modules": {name: kind for h in hooks for name, kind in h.watched.items()},
        "skipped": {name: kind for h in hooks for name, kind in h.skipped.items()},
        "parameters": [name for h in hooks for name in h.parameters],
        "buffers": [name for h in hooks for name in h.buffers],
        "unscanned": dict(scanner._core.counters()["unscanned"]),
        "dropped": scanner._core.counters()["dropped"],
        "notes": [*scanner._models.notes, *scanner._levels.notes, *_device_notes(scanner), *_log_notes(scanner)],
        "failure": scanner._failure,
    }


def report_of(scanner: Scanner, event: Event | None = None) -> str:
    """The block for `event` (None: the scanner's first), or the two healthy lines."""
    event = scanner._store.first if event is None else event
    world = scanner._settings.world_size
    if event is None:
        lines = healthy_lines(watched_of(scanner), next_step=_next_when_healthy(scanner))
    elif event.severity == "warning":
        lines = warning_lines(event, world_size=world)
    else:
        history = scanner._health.absmax_before(event, HISTORY_STEPS)
        warned = warning_before(event, scanner._store.events)
        after = scanner._levels.aftermath
        lines = first_culprit_lines(event, history=history, after=after, warned=warned, world_size=world)
    if scanner._failure is not None:
        off = (
            f"nanscan: switched itself off at step {scanner._clock.step} after a fault of its own ({scanner._failure})"
        )
        lines = [off, *(lines if event is not None else ["  what came later was not watched; next: report the fault"])]
    lines += note_lines([*scanner._levels.notes, *_device_notes(scanner), *_log_notes(scanner)])
    return "\n".join(lines)


def _device_notes(scanner: Scanner) -> list[str]:
    """What became of a device, if anything did."""
    error = scanner._core.device_error
    if not error or any(error in note for note in scanner._models.notes):
        return []
    return [f"{error}: what it had not handed over by then is not judged"]


def _log_notes(scanner: Scanner) -> list[str]:
    """What went wrong with the event log, if anything did."""
    log = scanner._log
    return [] if log is None or log.error is None else [f"the event log in {log.dir} is not complete: {log.error}"]


def _next_when_healthy(scanner: Scanner) -> str | None:
    if scanner.options.dir is not None:
        return f"nanscan report {scanner.options.dir}"
    return "dir=... (or --dir) keeps a log" if scanner.closed else None


def watched_of(scanner: Scanner) -> Watched:
    """The counts behind the healthy lines."""
    stats = stats_of(scanner)
    hooks = scanner._models.hooks
    return Watched(
        steps=stats["steps"],
        ranks=scanner._settings.world_size,
        modules=sum(len(h.watched) for h in hooks),
        parameters=sum(len(h.parameters) for h in hooks),
        level=scanner.options.level,
        skips=stats["skips"],
        allowed=stats["allowed"],
        infos=stats["infos"],
        dropped=stats["dropped"],
        unscanned=stats["unscanned"],
    )


def _harmless(reason: str) -> bool:
    """Integers and absent gradients cannot be non-finite: nothing was missed there."""
    return reason.startswith(("not a floating", "undefined"))
