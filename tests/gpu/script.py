"""Scripts for shim/drive.cpp: written step by step, then run by a program; records come back as numpy."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanscan.record import RECORD_DTYPE

STAMPED = np.dtype([("stamp", "<u8"), ("record", RECORD_DTYPE)])


@dataclass
class Script:
    """`tensor` returns an id; scans name tensors by it, and records carry it as their site."""

    lines: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def open(self, capacity: int = 4096) -> Script:
        return self._say("open", capacity)

    def tensor(self, t: Any) -> int:
        stored = t.bits.tobytes()
        size = len(stored) // max(t.bits.size, 1) * (2 if t.dtype.is_complex else 1)
        self._say(
            *("tensor", int(t.dtype), t.flags, len(stored), t.misalign, t.offset * size, t.numel, len(t.sizes)),
            *t.sizes,
            *t.strides,
        )
        self.data.append(stored)
        self.tensors.append(t)
        return len(self.tensors) - 1

    def scan(self, tensor: int, *, stream: int = 0, step: int = 0) -> Script:
        return self._say("scan", stream, step, tensor)

    def many(self, *tensors: int, stream: int = 0, step: int = 0) -> Script:
        return self._say("many", stream, step, *tensors)

    def capture(self, stream: int, begin: bool) -> Script:
        return self._say("capture", stream, int(begin))

    def replay(self, stream: int) -> Script:
        return self._say("replay", stream)

    def run(self, seed: int, max_launches: int = 1 << 30) -> Script:
        return self._say("run", seed, max_launches)

    def flush(self) -> Script:
        return self._say("flush")

    def poll(self, most: int = 4096) -> Script:
        return self._say("poll", most)

    def counters(self) -> Script:
        return self._say("counters")

    def _say(self, *words: object) -> Script:
        self.lines.append(" ".join(map(str, words)))
        return self


@dataclass(frozen=True)
class Outcome:
    code: int
    records: np.ndarray  # STAMPED, in the order polled
    lines: list[str]  # what the program printed
    errors: str  # its stderr

    @property
    def counters(self) -> list[tuple[int, ...]]:
        """(launched, finished, dropped) of each time they were asked for."""
        return [tuple(map(int, line.split()[1:])) for line in self.lines if line.startswith("counters")]


def execute(program: Path, script: Script, folder: Path) -> Outcome:
    data, out = folder / "data", folder / "out"
    data.write_bytes(b"".join(script.data))
    command = [str(program), str(data), str(out)]
    # ThreadSanitizer of older compilers cannot place its shadow memory where the kernel randomises much
    if program.name.endswith("tsan") and shutil.which("setarch"):
        command = ["setarch", "-R", *command]
    environ = {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "halt_on_error=1",
    }
    text = "\n".join(script.lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, env=environ)
    raw = out.read_bytes() if out.exists() else b""
    records = np.frombuffer(raw[: len(raw) // STAMPED.itemsize * STAMPED.itemsize], STAMPED)
    return Outcome(done.returncode, records, done.stdout.splitlines(), done.stderr)
