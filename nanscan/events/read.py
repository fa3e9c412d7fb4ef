"""Reading event logs back: several ranks, restarts, rotated parts, torn lines and newer writers. No torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanscan.events.event import Event
from nanscan.events.log import SCHEMA

_NAME = re.compile(
    r"(?P<stem>nanscan(?:-rank(?P<rank>\d+))?(?:-restart(?P<restart>\d+))?-pid(?P<pid>\d+)(?:-\d+)?)"
    r"(?:\.part(?P<part>\d+))?\.jsonl"
)


@dataclass(slots=True)
class RunLog:
    """What one process wrote.

    Args:
        path: its first part. rank, restart: None where the name carries none.
        began: time of its first line, in seconds since the epoch.
        start, end: the payloads of those lines; `end` is None for a process that is running, or died.
        events: in the order written. hits: how often each site was seen, as far as the log says.
        problems: what could not be read, in words.
    """

    path: Path
    rank: int | None
    restart: int | None
    pid: int
    began: float | None = None
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    events: list[Event] = field(default_factory=list)
    hits: dict[tuple[str | None, ...], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def first(self) -> Event | None:
        """The earliest error; if there is none, the earliest warning."""
        for severity in ("error", "warning"):
            found = [event for event in self.events if event.severity == severity]
            if found:
                return min(found, key=lambda event: (event.step, event.time, event.seq))
        return None


def read_dir(dir: str | os.PathLike[str]) -> list[RunLog]:
    """Every log in `dir`, by restart, rank and name. An empty list if there is none."""
    files: dict[str, list[tuple[int, Path]]] = {}
    for path in Path(dir).iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            files.setdefault(match["stem"], []).append((int(match["part"] or 1), path))
    logs = [_read_run(stem, [path for _, path in sorted(parts)]) for stem, parts in files.items()]
    return sorted(logs, key=lambda log: (log.restart or 0, log.rank or 0, str(log.path)))


def _read_run(stem: str, parts: list[Path]) -> RunLog:
    match = _NAME.fullmatch(f"{stem}.jsonl")
    assert match is not None
    rank, restart = (None if match[name] is None else int(match[name]) for name in ("rank", "restart"))
    log = RunLog(path=parts[0], rank=rank, restart=restart, pid=int(match["pid"]))
    for path in parts:
        try:
            for number, line in _lines(path):
                _take(log, f"{path.name}:{number}", line)
        except OSError as err:
            log.problems.append(f"{path.name}: {err}")
    return log


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _take(log: RunLog, where: str, line: bytes) -> None:
    try:
        entry = json.loads(line)
        kind, data = entry["kind"], entry["data"]
        if log.began is None:
            log.began = float(entry["time"])
        if entry["schema"] > SCHEMA:
            log.problems.append(f"{where}: schema {entry['schema']} is newer than {SCHEMA}; read as far as it is known")
        if kind == "start":
            log.start = log.start or _mapping(data)
        elif kind == "end":
            log.end = _mapping(data)
        elif kind == "event":
            event = Event.from_dict(_mapping(data))
            log.events.append(event)
            log.hits[event.key] = max(log.hits.get(event.key, 0), int(data.get("count", 1)))
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        log.problems.append(f"{where}: torn or foreign line ({type(err).__name__})")


def _mapping(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"expected an object, found {type(data).__name__}")
    return dict(data)
