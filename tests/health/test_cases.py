"""The case corpus: silent on healthy programs, and on time in the two that explode at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve()
FOLDERS = [HERE.parents[1] / "cases", HERE.parents[2] / "shared" / "cases", HERE.parents[3] / "shared" / "cases"]
FOLDER = next((f for f in FOLDERS if list(f.glob("c60_*.py"))), None)
pytestmark = pytest.mark.skipif(FOLDER is None, reason="the case corpus is not in this checkout")


def load(path):
    spec = importlib.util.spec_from_file_location(f"health_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def findings_of(path, watch_training):
    torch.manual_seed(0)
    case = load(path)
    model, step_fn = case.build()
    if model is None:
        pytest.skip("no model to watch")

    def step(i):
        step_fn(i)  # its result is a loss, not a verdict

    return case, watch_training(model, step, case.EXPECT.get("steps", 1))


HEALTHY = sorted(FOLDER.glob("c*_healthy_*.py")) if FOLDER else []
# Wrong in ways that are not growth: another detector's job.
OTHER = sorted(p for n in ("c62", "c65", "c67") for p in FOLDER.glob(f"{n}_*.py")) if FOLDER else []


@pytest.mark.parametrize("path", [*HEALTHY, *OTHER], ids=lambda p: p.stem)
def test_silence(watch_training, path):
    assert findings_of(path, watch_training)[1] == []


@pytest.mark.parametrize("name", ["c60", "c61"])
def test_explosions_are_dated(watch_training, name):
    case, findings = findings_of(next(FOLDER.glob(f"{name}_*.py")), watch_training)
    assert [f.step for f in findings] == [case.EXPECT["step"]]
