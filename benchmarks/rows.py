"""Benchmark rows: a measurement and the world it was taken in, a JSON line of benchmarks/results/<name>.jsonl each.

Measuring and showing are separate: a benchmark appends rows here, whoever plots reads them back.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def cpu_model() -> str:
    """The processor's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def revision() -> str:
    """The commit measured, with a + when files differ from it; "" outside a repository."""
    try:
        command = ["git", "describe", "--always", "--dirty=+"]
        done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, timeout=10)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def world() -> dict[str, Any]:
    """What a number means nothing without."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": revision(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def append(name: str, rows: Sequence[dict[str, Any]], results: Path = RESULTS) -> Path:
    """Add rows of one run to <results>/<name>.jsonl, each with the world; returns the file."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{name}.jsonl"
    here = world()
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({**row, "world": here}) + "\n")
    return path


def interleaved(rivals: dict[str, Callable[[], object]], rounds: int, target_s: float = 2e-3) -> dict[str, list[float]]:
    """Seconds per call of each rival, `rounds` samples each, taken in turn so that noise falls on all alike.

    A sample repeats its call until it takes about target_s; the order turns around every round.
    """
    repeats = {}
    for name, call in rivals.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(target_s / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds):
        for name in list(rivals) if turn % 2 else reversed(rivals):
            call, n = rivals[name], repeats[name]
            start = time.perf_counter()
            for _ in range(n):
                call()
            samples[name].append((time.perf_counter() - start) / n)
    return samples
