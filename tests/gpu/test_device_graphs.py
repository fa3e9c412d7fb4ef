"""Graphs: what hooks launch while a stream captures runs in the replays, each of which is a step of its own."""

from __future__ import annotations


def of(answer_of, name):
    found = answer_of("graphs")[name]
    assert found["failure"] is None
    return found["captured at"], found["events"]


def test_a_captured_launch_does_not_run_and_takes_no_place(answer_of):
    found = answer_of("graphs")["records"]
    assert found["launches"] == 11  # the input, four values, four gradients, and both tables
    assert found["scans"] == 21
    assert (found["pending"], found["held"]) == (0, 0)
    assert (found["numbers at capture"], found["links at capture"]) == (0, 0)


def test_replays_are_told_apart_and_whole(answer_of):
    found = answer_of("graphs")["records"]
    assert found["all are replays"]
    assert found["steps"] == [0, 1, 2]  # that of the capture is the first replay's
    assert found["in one piece"]
    assert found["alike"]
    # What the hooks noted while it was captured is there with each
    assert found["links"] == 23
    assert found["inputs"] == 7
    assert found["batches"] == [2, 3, 4]
    assert found["dropped"] == 0


def test_a_nan_of_the_fourth_replay_is_one_event_of_that_step(answer_of):
    for name in ("forward nan", "forward nan, at flush"):
        at, (event,) = of(answer_of, name)
        assert (event["severity"], event["role"], event["phase"]) == ("error", "origin", "forward")
        assert (event["step"], event["batch"]) == (at + 3, at + 3)
        assert event["module"] == "inner.0"
        assert event["chain"] == ["inner.0", "inner.1", "inner", "b", "Net"]
        assert event["inputs"]["input 0"]["nan"] == 0  # read where it was made, of the same replay


def test_records_that_trickle_in(answer_of):
    at, events = of(answer_of, "in pieces")
    assert [(event["step"] - at, event["module"]) for event in events] == [(2, "b"), (3, "b"), (4, "b")]


def test_a_gradient(answer_of):
    at, events = of(answer_of, "backward inf")
    first = events[0]
    assert (first["phase"], first["step"] - at, first["module"], first["kind"]) == ("backward", 2, "inner.1", "inf")
    assert "bad parameter gradients after it: 1" in first["evidence"]


def test_an_update_explains_what_follows(answer_of):
    at, (event,) = of(answer_of, "update")
    assert (event["phase"], event["step"] - at, event["tensor"]) == ("optimizer", 1, "b.weight")


def test_eager_steps_beside_it_keep_their_verdict(answer_of):
    _, events = of(answer_of, "beside eager steps")
    assert [(event["phase"], event["step"], event["tensor"]) for event in events] == [
        ("data", 5, "input 0"),
        ("data", 6, "input 0"),
    ]


def test_raise_waits_for_the_scanners_own_step(answer_of):
    replay, step, *later = answer_of("graphs")["raising"]
    assert (replay, step) == (1, 1)
    assert later == [2, 2, 3, 3]
