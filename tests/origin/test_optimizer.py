"""What the optimizer's step, or code just before it, made bad."""

from __future__ import annotations

import pytest

from nanscan.record import Phase


def healthy_step(sim):
    sim.forward()
    assert sim.decide("optimizer") == []
    assert sim.end() == []


def test_parameters_bad_with_good_gradients_were_made_by_the_update(sim, brief):
    sim.forward()
    sim.values(names=["a.weight", "b.weight"])
    (event,) = sim.decide("optimizer")
    assert brief([event]) == [("error", "origin", "optimizer", None, "a.weight")]
    assert "2 parameters turned bad in this update" in event.evidence


def test_parameters_bad_with_bad_gradients_are_a_consequence(sim, brief):
    sim.forward()
    sim.param_grads(names=["a.weight"])
    assert len(sim.decide("backward")) == 1
    sim.values(names=["a.weight"])
    assert sim.decide("optimizer") == []


def test_a_parameter_that_was_bad_in_an_earlier_step_is_no_news(sim):
    sim.forward()
    sim.values(names=["a.weight"])
    assert len(sim.end()) == 1
    sim.forward()
    sim.values(names=["a.weight"])
    assert sim.end() == []


def test_a_parameter_that_was_bad_before_training_was_not_made_by_the_optimizer(sim):
    sim.values(names=["a.weight"], phase=Phase.NONE)
    sim.forward()
    sim.values(names=["a.weight"])
    assert sim.end() == []


def test_neginf_parameters_are_no_alarm(sim):
    sim.forward()
    sim.values("-inf", names=["a.weight"])
    assert sim.end() == []


def test_gradients_made_bad_by_clipping(sim, brief):
    sim.forward()
    assert sim.decide("backward") == []
    sim.param_grads(names=["a.weight", "b.weight"], phase=Phase.OPTIMIZER)
    sim.values(names=["a.weight", "b.weight"])
    (event,) = sim.decide("optimizer")
    assert brief([event]) == [("error", "origin", "optimizer", None, "a.weight")]
    assert event.tensor_label == "a.weight.grad"
    assert "a.weight.grad was finite at the end of backward" in event.evidence[1]
    assert event.remedy.startswith("look at what runs between backward() and optimizer.step()")


def test_gradients_made_bad_after_backward_are_told_before_the_update(sim):
    sim.forward()
    assert sim.decide("backward") == []
    sim.param_grads(names=["a.weight"], phase=Phase.OPTIMIZER)
    assert [event.phase for event in sim.decide("backward")] == ["optimizer"]
    sim.values(names=["a.weight"])
    assert sim.decide("optimizer") == []


def test_clipping_that_spreads_a_bad_gradient_is_a_consequence(sim, brief):
    sim.forward()
    sim.param_grads("inf", names=["b.weight"])
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", "b", "b.weight")]
    sim.param_grads("nan", names=["b.weight"], phase=Phase.OPTIMIZER)
    sim.values(names=["b.weight"])
    assert sim.decide("optimizer") == []


def test_gradients_first_seen_at_the_end_of_the_step(sim, brief):
    """No optimizer: they are scanned at step()."""
    sim.forward()
    sim.param_grads(names=["a.weight"])
    assert brief(sim.end()) == [("error", "origin", "backward", "a", "a.weight")]


@pytest.mark.parametrize(
    ("kind", "warm", "severity"),
    [
        pytest.param("nan", True, "error", id="NaN"),
        pytest.param("inf", True, "warning", id="Inf: lost accuracy, or a running maximum that was reset"),
        pytest.param("inf", False, "info", id="Inf from the start: how running minima begin"),
        pytest.param("-inf", True, None, id="-Inf: a mask"),
    ],
)
def test_a_buffer_that_turns_bad_while_outputs_are_good(sim, brief, kind, warm, severity):
    if warm:
        healthy_step(sim)
    sim.forward()
    sim.values(kind, names=["block.norm.running_var"])
    expected = [(severity, "origin", "forward", "block.norm", "block.norm.running_var")] if severity else []
    assert brief(sim.decide("optimizer")) == expected


def test_a_buffer_that_turns_bad_with_a_bad_forward_is_a_consequence(sim):
    healthy_step(sim)
    sim.forward(out="nan", a="nan", head="nan")
    sim.values(names=["block.norm.running_var"])
    assert [event.phase for event in sim.end()] == ["forward"]
