"""The check for machines with a GPU, as far as it goes without one: its dry run, and what its programs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Everything but building, which takes minutes, and the tests, which pytest is running already.
FAST = "smoke values scan hook launches step graph memcheck racecheck initcheck synccheck scan-help step-help"
NEEDS_GPU = ("values", "scan", "hook", "launches", "step", "graph", "memcheck", "racecheck", "initcheck", "synccheck")


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A checkout by links, with what is installed here in the place of what the script would build."""
    import nanscan

    for name in ("benchmarks", "examples", "tests", "csrc"):
        (tmp_path / name).symlink_to(root / name)
    lib = tmp_path / "build" / "gpu-check" / "lib"
    lib.mkdir(parents=True)
    (lib / "nanscan").symlink_to(Path(nanscan.__file__).parent)
    return tmp_path


def run(script: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("NANSCAN")}
    env |= {"PYTHON": sys.executable, **environment}
    return subprocess.run(["bash", script, *args], env=env, capture_output=True, text=True, timeout=300)


def test_a_dry_run_goes_through_every_stage(checkout: Path) -> None:
    if not list((checkout / "build" / "gpu-check" / "lib" / "nanscan").glob("_C*.so")):
        pytest.skip("no core is built here: the dry run has nothing to run")
    script = checkout / "benchmarks" / "gpu_check.sh"
    out = checkout / "out"
    done = run(script, "--dry", "--only", FAST, OUT=str(out))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + (out / "gpu_check.log").read_text()[-3000:]
    for name in NEEDS_GPU:
        assert f"left out  {name}: needs a CUDA device (--dry)" in lines
    for name in ("smoke", "scan-help", "step-help"):
        assert any(line.startswith(f"ok        {name} (") for line in lines), done.stdout
    assert lines[-1].startswith("all that ran went well")
    assert (out / "gpu_check.txt").read_text() == done.stdout
    assert {path.name for path in out.iterdir()} == {"gpu_check.txt", "gpu_check.log"}


def test_a_failing_stage_stops_no_other(checkout: Path) -> None:
    script = checkout / "benchmarks" / "gpu_check.sh"
    lib = checkout / "build" / "gpu-check" / "lib"
    (lib / "nanscan").unlink()
    (lib / "nanscan").mkdir()
    (lib / "nanscan" / "_C.so").touch()
    (lib / "nanscan" / "__init__.py").write_text("raise ImportError('planted')")
    done = run(script, "--dry", "--only", "smoke scan-help graph", OUT=str(checkout / "out"))
    assert done.returncode == 1
    assert "FAILED    smoke: exit code 1" in done.stdout
    assert "left out  graph: needs a CUDA device (--dry)" in done.stdout
    assert "something FAILED" in done.stdout.splitlines()[-1]


def test_an_unknown_argument_shows_how_to_use_it(root: Path) -> None:
    done = run(root / "benchmarks" / "gpu_check.sh", "--wet")
    assert done.returncode == 2
    assert "benchmarks/gpu_check.sh --dry" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("program", ["bench_gpu_scan", "bench_gpu_step", "gpu_small_scans"])
def test_without_a_gpu_its_programs_say_so(root: Path, program: str) -> None:
    command = [sys.executable, root / "benchmarks" / f"{program}.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{program}: needs a CUDA device")
