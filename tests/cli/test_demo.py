"""The demo's program: healthy it learns in silence, and each planted mistake is found where it was planted."""

from __future__ import annotations

import pytest

from nanscan.cli.demo import example_folder


@pytest.mark.slow
def test_demo_shows_both_reports(nanscan) -> None:
    done = nanscan("demo", timeout=600)
    assert done.returncode == 0, done.stderr
    healthy, broken = done.stdout.split("--- the same with a mistake planted")
    losses = [float(line.split()[3]) for line in healthy.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[-3] < losses[0]
    assert "nanscan: healthy." in healthy
    assert "FIRST" not in healthy
    assert "nan" in broken.split("FIRST NON-FINITE")[0].split("loss")[-1]
    assert "blocks.1.attn" in broken
    assert "forward" in broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "steps", "phase", "place"),
    [
        pytest.param("empty-rows", 60, "forward", "blocks.1.attn", id="empty-rows"),
        pytest.param("norm-eps", 60, "backward", "blocks.0.norm1", id="norm-eps"),
        pytest.param("half-softmax", 250, "forward", ".attn", id="half-softmax"),
    ],
)
def test_a_mistake_is_found(nanscan, mistake: str, steps: int, phase: str, place: str) -> None:
    train = str(example_folder() / "train.py")
    done = nanscan("run", "--error-exitcode", "3", train, "--mistake", mistake, "--steps", str(steps), timeout=600)
    assert done.returncode == 3, done.stderr
    report = done.stderr[done.stderr.index("FIRST NON-FINITE") :].splitlines()
    assert report[0].split()[-1] == phase
    assert int(report[0].split()[3]) > 0
    assert place in report[1]


def test_the_example_runs_without_nanscan(python) -> None:
    code = (
        "import sys, runpy; sys.modules['nanscan'] = None; path = sys.argv.pop(1); sys.argv[0] = path;"
        "sys.path[0] = path.rpartition('/')[0]; runpy.run_path(path, run_name='__main__')"
    )
    done = python("-c", code, str(example_folder() / "train.py"), "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
