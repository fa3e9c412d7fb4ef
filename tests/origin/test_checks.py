"""nanscan.check(): a named place in user code."""

from __future__ import annotations

import pytest


def test_a_bad_check_with_nothing_bad_before_is_the_origin(sim, brief):
    sim.forward()
    sim.check("loss", "nan")
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "origin", "forward", None, "loss")]


def test_a_check_after_a_told_error_is_a_consequence(sim, brief):
    sim.forward(out="nan", a="nan", head="nan")
    sim.check("loss", "nan")
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "a", None)]


def test_a_check_after_the_model_is_not_explained_by_what_the_model_absorbed(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "inf")
    sim.check("loss", "nan")
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", None, "loss")]


def test_a_check_after_the_model_promotes_the_neginf_that_the_model_returned(sim, brief):
    sim.forward(out="-inf", head="-inf")
    sim.check("loss", "inf")
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "head", None)]


@pytest.mark.parametrize(
    ("a", "check", "module", "tensor"),
    [
        pytest.param("nan", "nan", "a", None, id="a child's value"),
        pytest.param("ok", "nan", "block", "scores", id="nothing before: made in this code"),
        pytest.param("-inf", "nan", "block", "scores", id="a mask does not explain a NaN"),
        pytest.param("-inf", "-inf", "a", None, id="a mask explains -Inf"),
    ],
)
def test_a_check_inside_a_module(sim, value, brief, a, check, module, tensor):
    with sim.call("", [value()], root=True) as root, sim.call("block", root.inputs) as block:
        sim.leaf("a", block.inputs, a)
        sim.check("scores", check, module="block")
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", module, tensor)]


def test_a_check_inside_a_module_that_sees_the_bad_root_input(sim, value, brief):
    with sim.call("", [value("nan")], root=True):
        sim.check("x", "nan", module="")
    assert brief(sim.decide("forward")) == [("error", "external", "data", "", "input 0")]


def test_a_check_explains_the_module_around_it_and_what_ends_later(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.check("scores", "nan", module="block")
            block.out = "nan"
        sim.leaf("head", [block.value], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "origin", "forward", "block", "scores")]
    assert event.place == "check 'scores' in block"
    assert event.remedy == (
        "look between check 'scores' and the check before it (if there is none: what block was given)"
    )
    assert sim.end() == []
    assert sim.origin.aftermath.outputs == 3


def test_what_was_made_before_a_check_is_still_the_origin(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        sim.check("x", "nan", module="")
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "a", None)]
    assert sim.end() == []


def test_a_check_keeps_gradients_from_being_told(sim):
    root = sim.forward()
    sim.check("loss", "nan")
    assert len(sim.decide("forward")) == 1
    sim.grad("nan", producers=[root])
    sim.param_grads()
    assert sim.end() == []
