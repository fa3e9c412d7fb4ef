"""A step that never ends, or has several updates: what is kept of it is bounded, and what is told stays the same."""

from __future__ import annotations

import pytest

from nanscan.origin.facts import MAX_KEPT
from nanscan.origin.state import MAX_PROVISIONAL, MAX_VALUES

BATCHES = 2000


def sizes(sim):
    """How much the judges hold of the running step, by what it is."""
    state = sim.origin._state
    held = {f"facts.{name}": value for name, value in vars(state.facts).items() if hasattr(value, "__len__")}
    held |= {name: value for name in state.__slots__ if hasattr(value := getattr(state, name), "__len__")}
    return {name: len(value) for name, value in held.items() if name != "facts._sites"}


def bad_data(sim, value):
    sim.forward(data="nan", out="nan", a="nan", head="nan")


def bad_module(sim, value):
    sim.forward(out="nan", a="nan", head="nan")


def absorbed(sim, value):
    with sim.call("", [value()], root=True) as root, sim.call("block", root.inputs):
        sim.leaf("block.norm", root.inputs, "nan")


def masked(sim, value):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("block.mask", root.inputs, "-inf", low=-1.0, high=2.0)


def bad_check(sim, value):
    sim.forward()
    sim.check("loss", "nan")


PROGRAMS = [bad_data, bad_module, absorbed, masked, bad_check]


@pytest.mark.parametrize("program", PROGRAMS)
def test_forwards_of_a_step_that_never_ends(sim, value, program):
    events = []
    for _ in range(BATCHES):
        program(sim, value)
        events += sim.decide("forward")
    assert max(sizes(sim).values()) <= 2 * MAX_KEPT, sizes(sim)  # inputs: of calls and of roots
    looked_at = sim.origin._state.facts.pending
    assert len(looked_at) < 32  # each of them costs something at each judgement
    events += sim.end()
    assert len(events) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_backwards_of_a_step_that_never_ends(sim, value, program):
    for _ in range(BATCHES):
        program(sim, value)
        sim.decide("forward")
        sim.param_grads()
        sim.decide("backward")
    held = sizes(sim)
    assert held.pop("facts.param_grads") <= 2 * MAX_VALUES
    assert max(held.values()) <= 2 * MAX_KEPT, held  # inputs: of calls and of roots


def test_bad_gradients_that_reach_no_parameter(sim):
    for _ in range(BATCHES):
        root = sim.forward()
        sim.grad("nan", producers=[root])
        sim.decide("forward")
        sim.decide("backward", scaler=True)
    assert max(sizes(sim).values()) <= MAX_KEPT, sizes(sim)


def test_births_that_wait_are_bounded_and_old_ones_are_counted(sim, value):
    for _ in range(BATCHES):
        absorbed(sim, value)
        sim.decide("forward")
    assert len(sim.origin._state.provisional) <= MAX_PROVISIONAL
    sim.end()
    assert sim.origin.counts["absorbed"] == BATCHES


def test_a_birth_of_the_last_forward_is_there_for_its_backward(sim, value):
    """GIVEN a long step WHEN a gradient goes bad where the last forward absorbed a NaN THEN that NaN is told."""
    for _ in range(BATCHES):
        absorbed(sim, value)
        sim.decide("forward")
    with sim.call("", [value()], root=True) as root:
        head = sim.leaf("a", root.inputs, "nan")
        with sim.call("head", [head]) as frame:
            pass
    sim.decide("forward")
    producer = type(frame)(head.call, head.site, root, [], False)
    sim.grad("nan", readers=[producer])
    sim.param_grads()
    (event,) = sim.decide("backward")
    assert (event.phase, event.module) == ("forward", "a")


def test_one_large_forward_is_kept_whole(sim, value):
    with sim.call("", [value()], root=True) as root:
        h = root.inputs[0]
        for _ in range(3 * MAX_KEPT):
            h = sim.leaf("a", [h], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert len(sim.origin._state.facts.calls) == 3 * MAX_KEPT + 1
    assert event.module == "a"
    assert sim.origin.aftermath.outputs == 3 * MAX_KEPT


def test_what_was_kept_from_a_forgotten_call_is_no_birth(sim):
    """GIVEN a bad value computed once and read in each forward WHEN its maker is forgotten THEN nothing is told."""
    with sim.call("", [], root=True) as root:
        cached = sim.leaf("a", [], "nan")
        root.out = "nan"
    assert [event.module for event in sim.decide("forward")] == ["a"]
    for _ in range(BATCHES):
        with sim.call("", [], root=True) as root:
            sim.leaf("head", [cached], "nan")
            root.out = "nan"
        assert sim.decide("forward") == []
    assert sim.origin._state.facts.is_forgotten(cached.call)
    assert sim.end() == []


def test_the_aftermath_counts_what_was_forgotten(sim, value):
    for _ in range(BATCHES):
        bad_module(sim, value)
        sim.decide("forward")
    assert sim.origin.aftermath.outputs == 3 * BATCHES - 1  # root, a and head, but for the first error
    sim.end()
    assert sim.origin.aftermath.outputs == 3 * BATCHES - 1


# ---- several updates in one step


def update(sim, value, params=(), out="nan", point="optimizer"):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, out, params=params)
        root.out = out
    events = sim.decide("forward")
    if out != "ok":
        sim.param_grads()
        events += sim.decide("backward")
        sim.values()
    return events + sim.decide(point)


def test_what_an_update_spoils_is_not_told_again_in_the_same_step(sim, value):
    assert len(update(sim, value)) == 1
    for _ in range(5):
        assert update(sim, value, params=[("a.weight", "nan")]) == []
        sim.check("loss", "nan")
    assert sim.end() == []
    assert sim.origin.counts["consequences"] >= 5
    assert sim.origin.counts["repeats"] == 0


def test_two_errors_of_a_step_whose_parameters_stay_good_are_both_told(sim, value):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        root.out = "nan"
    assert len(sim.decide("forward")) == 1
    sim.decide("optimizer")
    sim.forward(out="nan", head="nan")
    assert [event.module for event in sim.decide("forward")] == ["head"]
