"""The detectors detect: one mistake planted in a copy of the sources, and the run that has to notice it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from nanscan.record import DType

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Bug:
    """`old` stands once in the file under csrc and becomes `new`; a run under `sanitizer` then says `noticed`."""

    file: str
    old: str
    new: str
    sanitizer: str
    noticed: str
    all_of_them: bool = False  # `old` may stand more than once


BUGS = {
    "missing-barrier": Bug(
        "scan/cuda/fold.cuh", "  __syncthreads();\n  Moments all;", "  Moments all;", "tsan", "data race"
    ),
    "unordered-slot": Bug(
        "buffer/device_ring.cuh",
        "const unsigned long long seen = atomicCAS(&cursor->tickets, ticket, ticket + 1);",
        "const unsigned long long seen = cursor->tickets;\n      if (seen == ticket) cursor->tickets = ticket + 1;",
        "tsan",
        "data race",
    ),
    "tail-too-long": Bug(
        "scan/cuda/tile.cuh",
        "present = static_cast<int>(work.n - tail);",
        "present = static_cast<int>(work.n - tail) + 1;",
        "asan-ubsan",
        "heap-buffer-overflow",
    ),
    "shared-overflow": Bug(
        "scan/cuda/fold.cuh", "put(of_warp[warp], m)", "put(of_warp[warp + 1], m)", "asan-ubsan", "buffer-overflow"
    ),
    "divergent-barrier": Bug(
        "scan/cuda/kernel.cuh",
        "  __syncthreads();\n  if (*is_last == 0) return false;",
        "  if (threadIdx.x < 32) __syncthreads();\n  if (*is_last == 0) return false;",
        "plain",
        "SHIM ERROR",
    ),
    "divergent-shuffle": Bug(
        "scan/cuda/fold.cuh",
        "  if (warp == 0) {\n    if (lane",
        "  if (threadIdx.x < 16) {\n    if (lane",
        "plain",
        "SHIM ERROR",
    ),
    "missing-fence": Bug("scan/cuda/kernel.cuh", "__threadfence();", "", "tsan", "data race", all_of_them=True),
}


@pytest.fixture(scope="module")
def steps(script, oracle):
    """A run in which each of them matters: several tensors in one table, of several blocks, with tails."""
    rng = np.random.default_rng(7)
    steps = script.Script().open()
    ids = [steps.tensor(oracle.contiguous(DType.F32, oracle.random_bits(rng, DType.F32, n))) for n in (4099, 7, 2049)]
    return steps.many(*ids).run(1).poll()


def mutated(bug: Bug, csrc: Path, folder: Path) -> Path:
    copy = folder / "csrc"
    shutil.copytree(csrc, copy)
    path = copy / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1 or bug.all_of_them, f"{bug.file} has changed: {bug.old!r} is not there once"
    assert bug.old in text
    path.write_text(text.replace(bug.old, bug.new))
    return copy


def compile_only_f32(build, folder: Path, sanitizer: str, csrc: Path, name: str) -> Path:
    return build.driver(folder, sanitizer, csrc=csrc, elements=("kF32, F32, 1",), name=name, optimize="-O0")


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(build, script, driver, folder, steps, tmp_path, name):
    bug = BUGS[name]
    driver(bug.sanitizer)  # skips where this machine has no such sanitizer
    program = compile_only_f32(build, folder, bug.sanitizer, mutated(bug, build.ROOT / "csrc", tmp_path), name)
    outcome = script.execute(program, steps, tmp_path)
    assert outcome.code != 0, "the run went well"
    assert bug.noticed in outcome.errors, outcome.errors[-2000:]


@pytest.mark.parametrize("sanitizer", ["plain", "asan-ubsan", "tsan"])
def test_without_a_bug_the_same_run_is_quiet(driver, script, steps, tmp_path, sanitizer):
    outcome = script.execute(driver(sanitizer), steps, tmp_path)
    assert outcome.code == 0, outcome.errors[-2000:]
    assert len(outcome.records) == 3
