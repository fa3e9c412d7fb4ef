"""Two lines when nothing is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from nanscan.report.draw import MAX_COLUMNS, ascii_only
from nanscan.report.numbers import plural

DEFAULT_NEXT = "scanner.close() when done"


@dataclass(frozen=True, slots=True)
class Watched:
    """What a run amounts to, in counts.

    Args:
        steps: finished. skips: expected loss-scale skips. allowed: events declared expected.
        infos: events of severity info. dropped: records lost to a full ring.
        unscanned: tensors that could not be scanned.
        share: of the run's time, spent inside nanscan; None if not measured.
    """

    steps: int = 0
    ranks: int = 1
    modules: int = 0
    parameters: int = 0
    level: str = "module"
    skips: int = 0
    allowed: int = 0
    infos: int = 0
    dropped: int = 0
    unscanned: int = 0
    share: float | None = None


def healthy_lines(watched: Watched, *, next_step: str | None = None) -> list[str]:
    """Exactly two lines. What weakens the verdict (dropped records, unscanned tensors) is said, not hidden."""
    ranks = f" x {watched.ranks} ranks" if watched.ranks > 1 else ""
    if watched.steps == 0:
        first = "nanscan: nothing seen yet. 0 steps"
    else:
        extra = [
            text
            for n, text in (
                (watched.skips, f"{plural(watched.skips, 'loss-scale skip')} (expected)"),
                (watched.allowed, f"{watched.allowed} allowed"),
                (watched.infos, plural(watched.infos, "info event")),
                (watched.dropped, f"{plural(watched.dropped, 'record')} dropped"),
                (watched.unscanned, f"{plural(watched.unscanned, 'tensor')} not scanned"),
            )
            if n
        ]
        first = f"nanscan: healthy. {plural(watched.steps, 'step')}{ranks}, {', '.join(['0 anomalies', *extra])}."
        if watched.share is not None:
            first += f" overhead {100 * watched.share:.1f} %."
    second = (
        f"  watched {plural(watched.modules, 'module')}, {plural(watched.parameters, 'parameter')} "
        f"(level={watched.level}); next: {next_step or DEFAULT_NEXT}"
    )
    return [ascii_only(line)[:MAX_COLUMNS] for line in (first, second)]
