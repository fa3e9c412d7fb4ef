"""Tensors of a device at module level, with the stand-in for one: records come when the test lets them, in any order.

CPU memory counts as the device's for a whole process, so each question is put to a program under programs/, and the
tests here read its answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[1] / "cases"
WAYS = ("at once", "a step late", "in pieces", "in other pieces", "at flush")
TRAININGS = (
    "healthy", "forward nan", "between modules", "backward inf", "bad parameter", "parameter goes bad", "bad data",
    "infinite rate", "check", "scaler skips", "clip", "accumulated",
)  # fmt: skip
TRAP = "body.1.inner.1"


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two answers differ, numbers beyond rounding: the device's sums are added up in another order."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [d for key in sorted({*a, *b}) for d in differences(a.get(key), b.get(key), f"{where}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, pair in enumerate(zip(a, b, strict=True)) for d in differences(*pair, f"{where}[{i}]")]
    same = a == pytest.approx(b, rel=1e-5, abs=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
    return [] if same else [f"{where}: {a!r} and {b!r}"]


# ---- verdicts


@pytest.mark.parametrize("training", TRAININGS)
def test_the_verdict_is_that_of_the_cpu_whenever_records_come(answer_of, training):
    cpu = answer_of("verdicts", device=False)["cpu"]
    late = answer_of("verdicts")
    assert set(cpu) == set(TRAININGS)
    assert set(late) == set(WAYS)
    for way in WAYS:
        expected = {name: fact for name, fact in cpu[training].items() if name != "scans"}
        found = {name: fact for name, fact in late[way][training].items() if name != "scans"}
        assert differences(expected, found, way) == []
        assert late[way][training]["scans"] > 100
    assert cpu[training]["failure"] is None
    assert cpu[training]["dropped"] == 0


def test_the_trainings_go_wrong_as_they_say(answer_of):
    cpu = answer_of("verdicts", device=False)["cpu"]
    first = {name: facts["first"] for name, facts in cpu.items()}
    assert [name for name in TRAININGS if first[name] is None] == ["healthy", "scaler skips"]
    assert f"in forward, step 2: {TRAP}" in first["forward nan"]
    assert f"in backward, step 2: {TRAP}" in first["backward inf"]
    assert "body.0.inner.0.weight read by" in first["bad parameter"]
    assert "body.0.norm.bias read by" in first["parameter goes bad"]
    assert "at the optimizer's step" in first["infinite rate"]
    assert "check 'loss'" in first["check"]
    assert cpu["scaler skips"]["skips"] == 1


@pytest.mark.slow
def test_the_whole_corpus_with_everything_held_until_flush(answer_of):
    found = answer_of("cases", CASES)
    assert found["wrong"] == {}
    assert (found["healthy"], found["nonfinite"]) == (16, 32)
    assert found["launches"] > 1000


# ---- nothing waits


def test_what_is_held_stays_held_over_fifty_steps(answer_of):
    found = answer_of("steps")["nothing_waits"]
    held, first = found["held"], found["held"][0]
    assert held == [first * (step + 1) for step in range(50)]  # a wait, anywhere, would have let them go
    assert found["early"] == []
    assert found["error steps"][0] == 2  # and the verdict is there when they are
    assert found["dropped"] == 0


def test_a_full_ring_is_counted_and_training_goes_on(answer_of):
    found = answer_of("steps")["full_ring"]
    assert found["capacity"] == 512
    assert 0 < found["most"] <= found["capacity"]
    assert found["dropped"] > 0
    assert found["launched when full"] == 0
    assert found["finite"]
    assert found["marks"] == 0
    assert found["first"] == [32, TRAP]  # what comes after the flood is judged again


# ---- on_anomaly, a step or two late


def test_raise_comes_at_the_next_safe_point(answer_of):
    # The NaN is of step 2; its record is released as step 4 begins, whose forward does not return any more.
    assert answer_of("steps")["raising"] == [[4, False, 2, TRAP]]


def test_stop_comes_at_the_next_boundary(answer_of):
    # Released after the forward of step 3: its backward and its update are let through.
    assert answer_of("steps")["stopping"] == ["forward 3", "step 3", "stopped for 2"]


def test_a_callable_is_told_once(answer_of):
    found = answer_of("steps")["calling"]
    assert found["before"] == []
    assert found["of first"] == [[2, TRAP]]


def test_warn_warns_when_the_record_is_there(answer_of):
    assert answer_of("steps")["warning"] == [0, "NonFiniteWarning"]


# ---- launches


def test_one_launch_for_each_new_value(answer_of):
    found = answer_of("steps")["launches"]
    # The input, what the Linear made and two modules handed up, and ReLU's two results. What ReLU reads is known.
    assert found["forward"] == 4
    assert found["backward"] == 2 + 1  # two gradients between modules, and those of both parameters in one call
    assert found["optimizer"] == 1  # the parameters; their gradients have not changed
    assert found["boundary"] == 0
    assert found["check"] == 1  # the other one was of no elements
    assert found["forward after a write by hand"] == 4 + 1
    assert found["parameters"] == 2


# ---- a device that fails


@pytest.mark.parametrize(("which", "unscanned"), [("forward", 1), ("gradients", 12), ("update", 12)])
def test_a_launch_that_fails_spoils_its_step_only(answer_of, which, unscanned):
    found = answer_of("steps")["lost"][which]
    assert found["finite"]
    assert found["failure"] is None
    assert found["steps"] == 5
    assert found["unscanned"] == unscanned
    assert len(found["notes"]) == 1
    assert "a device failed" in found["notes"][0]
    assert found["in report"]
    assert found["first"] == 4  # the NaN of a later step


def test_a_device_that_is_gone_keeps_nobody_waiting(answer_of):
    found = answer_of("steps")["lost"]["for good"]
    assert found["finite"]
    assert found["failure"] is None
    assert (found["steps"], found["pending"], found["marks"]) == (5, 0, 0)
    assert found["unscanned"] > 100
    assert found["in report"]
    assert found["first"] is None


# ---- no harm


@pytest.mark.parametrize("model", ["gpt", "cnn"])
def test_training_is_the_same_to_the_bit(answer_of, model):
    free, watched = answer_of("harmless", device=False)[model], answer_of("harmless")[model]
    assert watched["steps"] == free["steps"]
    assert len(set(free["steps"])) == 20
    assert watched["scans"] > 20 * 20
    assert (watched["first"], watched["failure"]) == ("None", None)


def test_nothing_is_kept_while_its_record_is_held(answer_of):
    found = answer_of("harmless")["retained"]
    assert found["seen"] > 40
    assert found["pending"] >= 50
    assert found["alive"] == 0


# ---- together


def test_two_scanners_have_their_own_verdicts(answer_of):
    found = answer_of("together")["two_scanners"]
    assert found == {"one": ["forward", 2, TRAP], "two": ["backward", 1, TRAP], "dropped": 0}


def test_threads_launch_at_once(answer_of):
    found = answer_of("together")["threads"]
    assert found["faults"] == []
    assert found["failure"] is None
    assert (found["batches"], found["dropped"], found["pending"]) == (160, 0, 0)
    assert found["first"] == ["data", 0, "inp"]


def test_a_forked_child_is_inert(answer_of):
    found = answer_of("together")["fork"]
    assert found["status"] == 0
    assert found["child"] == "0 0"
    assert found["pending"][0] == found["pending"][1] > 0
    assert found["first"] is None


def test_a_model_that_is_found_by_its_first_call(answer_of):
    assert answer_of("together")["without_a_model"] == ["data", 0, "0"]


# ---- the end


@pytest.mark.parametrize("how", ["close", "with", "exit", "fault"])
def test_a_program_that_ends_with_records_held_has_its_verdict(start_program, tmp_path, how):
    done = start_program("ends", tmp_path / "log", how)
    assert done.returncode == (1 if how == "fault" else 0), done.stderr
    (log,) = (tmp_path / "log").iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "event", "end"]
    assert (lines[1]["data"]["step"], lines[1]["data"]["module"]) == (2, TRAP)
