"""The event log of one process: JSON Lines, one write per line, bounded however long the run.

A line is handed to the operating system whole and at once, so a crash of the process loses nothing that was written,
and a crash of the machine tears the last line at most. The first part is never rotated away: it holds how the run began
and, nearly always, the first culprit.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanscan.errors import NanscanError
from nanscan.events.event import Event
from nanscan.events.jsonable import encode

SCHEMA = 1
MAX_SITES = 4096  # distinct sites whose repeats are counted one by one; further ones share a count


class EventLog:
    """Appends to ``nanscan[-rank3][-restart1]-pid4711.jsonl`` in `dir`; parts after the first end in ``.part2.jsonl``.

    Args:
        dir: folder, created if missing.
        rank, restart: as torchrun sets them; None leaves them out of the name.
        max_bytes: size of one part. keep: how many parts stay (at least 2): the first, and the latest others.
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        rank: int | None = None,
        restart: int | None = None,
        *,
        max_bytes: int = 4 << 20,
        keep: int = 4,
    ) -> None:
        if max_bytes < 1024 or keep < 2:
            raise ValueError(f"EventLog(max_bytes={max_bytes}, keep={keep}): use at least 1024 bytes and 2 parts")
        self.dir = Path(dir)
        self.rank = rank
        self.max_bytes = max_bytes
        self.keep = keep
        self.error: str | None = None  # why the last write failed; the program under watch is never stopped for it
        self._pid = os.getpid()
        self._restart = restart
        self._hits: Counter[tuple[str | None, ...]] = Counter()
        self._parts: list[Path] = []
        self._part = 1
        self._size = 0
        self._torn = False
        self._fd: int | None = self._open_first()

    @property
    def path(self) -> Path:
        """The first part."""
        return self._parts[0]

    def write(self, kind: str, payload: Mapping[str, Any]) -> bool:
        """Append one line. False if it could not be written (see `error`), after close() and in a forked child."""
        if self._fd is None or os.getpid() != self._pid:
            return False
        head = {"schema": SCHEMA, "kind": kind, "rank": self.rank, "time": time.time()}
        line = json.dumps({**head, "data": encode(payload)}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            if self._size and self._size + len(line) > self.max_bytes:
                self._rotate()
            return self._append(line)
        except OSError as err:
            self.error = str(err)
            return False

    def event(self, event: Event) -> bool:
        """Append an event; one that repeats at its site is written at powers of ten only. True if it was written."""
        key: tuple[str | None, ...] = event.key
        if key not in self._hits and len(self._hits) >= MAX_SITES:
            key = ("more sites",)
        self._hits[key] += 1
        count = self._hits[key]
        if not is_power_of_ten(count):
            return False
        return self.write("event", {**event.to_dict(), "count": count})

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd is not None and os.getpid() == self._pid:
            os.close(self._fd)
        self._fd = None

    def _append(self, line: bytes) -> bool:
        assert self._fd is not None
        data = b"\n" + line if self._torn else line
        written = os.write(self._fd, data)
        self._size += written
        self._torn = written < len(data)  # disk full: the next line starts afresh
        if self._torn:
            self.error = f"wrote {written} of {len(data)} bytes to {self._parts[-1]}"
        return not self._torn

    def _name(self, attempt: int) -> str:
        rank = "" if self.rank is None else f"-rank{self.rank}"
        restart = "" if self._restart is None else f"-restart{self._restart}"
        again = "" if attempt == 1 else f"-{attempt}"  # the same pid in the same folder: every container's pid 1
        return f"nanscan{rank}{restart}-pid{self._pid}{again}"

    def _open_first(self) -> int:
        try:
            self.dir.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 10_000):
                self._stem = self._name(attempt)
                path = self.dir / f"{self._stem}.jsonl"
                try:
                    fd = os.open(path, _FLAGS | os.O_EXCL, 0o644)
                except FileExistsError:
                    continue
                self._parts = [path]
                return fd
        except OSError as err:
            raise NanscanError(
                f"dir={str(self.dir)!r}: cannot write an event log there ({err}); give a writable folder"
            ) from err
        raise NanscanError(
            f"dir={str(self.dir)!r}: 10000 logs of process {self._pid} are there already; give a new folder"
        )

    def _rotate(self) -> None:
        self._part += 1
        path = self.dir / f"{self._stem}.part{self._part}.jsonl"
        fd = os.open(path, _FLAGS, 0o644)
        assert self._fd is not None
        os.close(self._fd)
        self._fd, self._size, self._torn = fd, 0, False
        self._parts.append(path)
        while len(self._parts) > self.keep:
            self._parts.pop(1).unlink(missing_ok=True)


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def is_power_of_ten(count: int) -> bool:
    """1, 10, 100 ...: when a repeated event is told again."""
    while count >= 10 and count % 10 == 0:
        count //= 10
    return count == 1
