"""Op level on a device, with the stand-in's records held back as long as a program says (device_ops.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanscan.backends import get

HERE = Path(__file__).resolve().parent
CASES = HERE.parent / "cases"
pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


@pytest.fixture(scope="session")
def late(build: ModuleType, folder: Path) -> Path:
    return build.late(folder)


@pytest.fixture
def run(late: Path) -> Callable[..., Any]:
    """run(name, *args): what that program printed."""

    def start(name: str, *args: str) -> Any:
        command = [sys.executable, str(HERE / "device_ops.py"), str(late), name, *args]
        clean = {name: value for name, value in os.environ.items() if name not in ("NANSCAN", "NANSCAN_DIR")}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env={**clean, "PYTHONHASHSEED": "0"}
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return start


@pytest.mark.slow
def test_the_cases_come_out_as_on_the_cpu(run) -> None:
    """Except that memory written behind the dispatcher is told as the reader's own: nothing is read twice there."""
    cases = run("corpus", str(CASES))
    assert len(cases) > 60
    wrong = {name: case["wrong"] for name, case in cases.items() if case["wrong"] and not case["behind"]}
    assert wrong == {}
    assert {tuple(case["wrong"]) for case in cases.values() if case["behind"]} <= {("role",), ()}


def test_a_part_of_a_storage(run) -> None:
    found = run("partial")
    (event,) = found["bad_then_good"]
    assert (event["op"], event["role"], event["kind"]) == ("aten::log_", "origin", "nan")
    assert event["chain"][-1].startswith("aten::sum")
    assert found["overwritten"] == [] or found["overwritten"][0]["severity"] == "info"
    assert found["unfilled_and_unread"] == []


def test_memory_that_nobody_filled(run) -> None:
    (event,) = run("unfilled")
    assert (event["role"], event["op"]) == ("uninitialised", "aten::mul")


def test_what_a_bad_op_read_is_shown_though_it_was_read_once(run) -> None:
    found = run("inputs")
    assert (found["absmax"], found["numel"]) == (100.0, 4)
    assert "inputs  all finite" in found["report"]


def test_a_wrapped_extension_is_named(run) -> None:
    (event,) = run("extension")
    assert (event["role"], event["op"], event["device"]) == ("origin", "my::spoil", "cuda:0")


def test_a_follow_up_after_an_anomaly_at_module_level(run) -> None:
    found = run("module_then_op")
    first, *later = [event for event in found["events"] if event["severity"] == "error"]
    assert (first["step"], first["op"]) == (2, None)
    # A verdict comes a step late, so the step after may have begun at module level still.
    assert {event["op"] for event in later if event["step"] > 3} == {"aten::log"}
    assert any("names aten::log" in note for note in found["notes"])


def test_healthy_steps_reach_no_judge(run) -> None:
    found = run("healthy")
    assert found["events"] == []
    assert found["fed"] == 0, "a healthy call on a device has to be dropped before Python sees it"
    assert found["storages"] < 2000


def test_training_is_the_same_to_the_bit(run) -> None:
    assert run("same_bits", "yes") == run("same_bits", "no")
