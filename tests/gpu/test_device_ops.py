"""Op level on a device, with the stand-in's records held back as long as a program says (programs/ops.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[1] / "cases"


@pytest.mark.slow
def test_the_cases_come_out_as_on_the_cpu(answer_of) -> None:
    """Except that memory written behind the dispatcher is told as the reader's own: nothing is read twice there."""
    cases = answer_of("ops", "corpus", str(CASES))
    assert len(cases) > 60
    wrong = {name: case["wrong"] for name, case in cases.items() if case["wrong"] and not case["behind"]}
    assert wrong == {}
    assert {tuple(case["wrong"]) for case in cases.values() if case["behind"]} <= {("role",), ()}


def test_a_part_of_a_storage(answer_of) -> None:
    found = answer_of("ops", "partial")
    (event,) = found["bad_then_good"]
    assert (event["op"], event["role"], event["kind"]) == ("aten::log_", "origin", "nan")
    assert event["chain"][-1].startswith("aten::sum")
    assert found["overwritten"] == [] or found["overwritten"][0]["severity"] == "info"
    assert found["unfilled_and_unread"] == []


def test_memory_that_nobody_filled(answer_of) -> None:
    (event,) = answer_of("ops", "unfilled")
    assert (event["role"], event["op"]) == ("uninitialised", "aten::mul")


def test_what_a_bad_op_read_is_shown_though_it_was_read_once(answer_of) -> None:
    found = answer_of("ops", "inputs")
    assert (found["absmax"], found["numel"]) == (100.0, 4)
    assert "inputs  all finite" in found["report"]


def test_a_wrapped_extension_is_named(answer_of) -> None:
    (event,) = answer_of("ops", "extension")
    assert (event["role"], event["op"], event["device"]) == ("origin", "my::spoil", "cuda:0")


def test_a_follow_up_after_an_anomaly_at_module_level(answer_of) -> None:
    found = answer_of("ops", "module_then_op")
    first, *later = [event for event in found["events"] if event["severity"] == "error"]
    assert (first["step"], first["op"]) == (2, None)
    # A verdict comes a step late, so the step after may have begun at module level still.
    assert {event["op"] for event in later if event["step"] > 3} == {"aten::log"}
    assert any("names aten::log" in note for note in found["notes"])


def test_a_fault_in_one_thread_of_four(answer_of) -> None:
    assert answer_of("ops", "threads") == [["aten::log", "error"]]


def test_healthy_steps_reach_no_judge(answer_of) -> None:
    found = answer_of("ops", "healthy")
    assert found["events"] == []
    assert found["fed"] == 0, "a healthy call on a device has to be dropped before Python sees it"
    assert found["storages"] < 2000


def test_training_is_the_same_to_the_bit(answer_of) -> None:
    assert answer_of("ops", "same_bits") == answer_of("ops", "same_bits", device=False)
