"""What a scanner says of itself: counters, coverage, the report's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanscan import backends
from nanscan.backends import watching
from nanscan.events.event import Event
from nanscan.report import (
    Block,
    Watched,
    block_html,
    decide_culprit,
    decide_warning,
    draw,
    healthy_lines,
    lines_html,
    note_lines,
    warning_before,
)

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
    lines = _healthy(scanner) if event is None else draw(_block(scanner, event))
    return "\n".join([*_fault(scanner), *lines, *_notes(scanner)])


def html_of(scanner: Scanner) -> str:
    """The same for a notebook."""
    event, fault, notes = scanner._store.first, _fault(scanner), _notes(scanner)
    if event is None:
        return lines_html([*fault, *_healthy(scanner), *notes])
    return "\n".join([*([lines_html(fault)] if fault else []), block_html(_block(scanner, event), notes)])


def _block(scanner: Scanner, event: Event) -> Block:
    world = scanner._settings.world_size
    if event.severity == "warning":
        return decide_warning(event, world_size=world)
    own = event.past[-HISTORY_STEPS:]
    return decide_culprit(
        event,
        history=own if len(own) > 1 else scanner._health.absmax_before(event, HISTORY_STEPS),
        after=scanner._levels.aftermath,
        warned=warning_before(event, scanner._store.events),
        world_size=world,
    )


def _healthy(scanner: Scanner) -> list[str]:
    """Two lines, or what is left to say after a fault."""
    if scanner._failure is not None:
        return ["  what came later was not watched; next: report the fault"]
    return healthy_lines(watched_of(scanner), next_step=_next_when_healthy(scanner))


def _fault(scanner: Scanner) -> list[str]:
    """A first line, where nanscan itself failed."""
    if scanner._failure is None:
        return []
    return [f"nanscan: switched itself off at step {scanner._clock.step} after a fault of its own ({scanner._failure})"]


def _notes(scanner: Scanner) -> list[str]:
    return note_lines([*scanner._levels.notes, *_device_notes(scanner), *_log_notes(scanner)])


def _device_notes(scanner: Scanner) -> list[str]:
    """What reads the tensors of devices, where it is not the CUDA library, and what became of a device."""
    notes = list(scanner._models.reader_notes)
    failure = watching.failure(backends.get().core)
    if notes and failure:
        notes.append(failure)
    error = scanner._core.device_error
    if error and not any(error in note for note in scanner._models.notes):
        notes.append(f"{error}: what it had not handed over by then is not judged")
    return notes


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
