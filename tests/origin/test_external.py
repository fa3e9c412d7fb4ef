"""Values that no watched module made: input data, parameters, memory written behind the dispatcher."""

from __future__ import annotations

import pytest

from nanscan.record import Phase


def test_bad_input_data_is_named_at_its_first_reader(sim, brief):
    sim.forward(data="nan", a="nan", head="nan", out="nan")
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "external", "data", "a", "input 0")]
    assert event.cause == "bad input data"
    assert event.batch == 0
    assert event.chain[0] == "input 0"


def test_the_innermost_reader_is_named(sim, value, brief):
    with sim.call("", [value("nan")], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.leaf("block.norm", root.inputs, "nan")
            block.out = "nan"
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "external", "data", "block.norm", "input 0")]


def test_data_that_the_root_reads_in_its_own_code(sim, value, brief):
    """cat([x, y]) in the root, then head: the root is the reader."""
    with sim.call("", [value(), value("nan")], root=True) as root:
        sim.leaf("head", [value("nan")], "nan")
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "external", "data", "", "input 1")]


def test_inf_data_that_turns_into_nan_is_still_the_data(sim, brief):
    sim.forward(data="inf", a="nan", out="nan")
    assert brief(sim.decide("forward")) == [("error", "external", "data", "a", "input 0")]


def test_bad_data_that_does_no_harm_is_not_mentioned(sim, value):
    with sim.call("", [value("nan")], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        root.out = "ok"
    assert sim.end() == []


def test_bad_data_that_no_module_turns_bad_with_is_silent(sim):
    sim.forward(data="inf")
    assert sim.end() == []


def test_an_additive_mask_as_root_input_is_silent(sim, value):
    with sim.call("", [value(), value("-inf")], root=True) as root:
        sim.leaf("block.mask", root.inputs, "-inf")
        root.out = "ok"
    assert [e.severity for e in sim.end()] in ([], ["info"])


def test_the_same_bad_batch_is_an_error_again(sim, value, brief):
    """Used a second time its tensor is known from the first step: still the data."""
    batch = value("nan")
    for _ in range(2):
        with sim.call("", [batch], root=True) as root:
            sim.leaf("a", [batch], "nan")
            root.out = "nan"
        assert brief(sim.end()) == [("error", "external", "data", "a", "input 0")]


def test_output_of_one_root_is_no_input_data_of_the_next(sim, value, brief):
    """GAN: the generator's NaN goes into the discriminator, as it is or through code in between."""
    for between in (False, True):
        with sim.call("a", [value()], root=True) as generator:
            generator.out = "nan"
        made = value("nan") if between else generator.value
        with sim.call("b", [made], root=True) as judge:
            judge.out = "nan"
        assert brief(sim.end()) == [("error", "origin", "forward", "a", None)]


def test_a_hidden_state_kept_from_a_bad_step_is_a_repeat(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        state = sim.leaf("a", root.inputs, "nan")
        root.out = "nan"
    assert len(sim.end()) == 1
    with sim.call("", [value(), state], root=True) as root:
        sim.leaf("a", [state], "nan")
        root.out = "nan"
    assert sim.end() == []
    assert sim.origin.counts["repeats"] == 1


# ---- parameters


def test_a_parameter_that_was_bad_before_it_was_read(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "external", "forward", "a", "a.weight")]
    assert (event.cause, event.rule) == ("bad parameter", "NS604")
    assert "already bad when it was read" in " ".join(event.evidence)


def test_a_good_parameter_is_not_blamed(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "ok")])
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "a", None)]


def test_a_parameter_of_the_code_around(sim, value, brief):
    """Read in the block's own code: the block is external, with the parameter's name."""
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.leaf("block.norm", [value("nan")], "nan")
            block.out, block.params = "nan", [("block.fc.weight", "nan")]
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "external", "forward", "block", "block.fc.weight")]


def test_a_parameter_bad_before_training_is_still_told_when_it_is_read(sim, value, brief):
    sim.values(names=["a.weight"], phase=Phase.NONE)
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    assert brief(sim.end()) == [("error", "external", "forward", "a", "a.weight")]


# ---- memory


@pytest.mark.parametrize("where", ["between modules", "root input"])
def test_memory_written_behind_the_dispatcher(sim, value, brief, where):
    if where == "root input":
        kept = value("ok")
        with sim.call("", [kept], root=True) as root:
            pass
        assert sim.end() == []
        kept.kind, kept.changed = "nan", True
        with sim.call("", [kept], root=True) as root:
            sim.leaf("head", [value("nan")], "nan")
            root.out = "nan"
        expected, module, last_clean = ("error", "external", "data", "", "input 0"), "", "Net"
    else:
        with sim.call("", [value()], root=True) as root:
            h = sim.leaf("a", root.inputs)
            h.kind, h.changed = "nan", True
            sim.leaf("head", [h], "nan")
            root.out = "nan"
        expected, module, last_clean = ("error", "external", "forward", "head", "input 0"), "head", "a"
    (event,) = sim.decide("forward")
    assert brief([event]) == [expected]
    assert event.module == module
    assert event.cause == "memory written outside the dispatcher"
    assert event.last_clean == last_clean


def test_an_input_written_by_ordinary_code_is_not_memory_damage(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs)
        sim.leaf("head", [value("nan")], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert event.role == "origin"
    assert event.cause == "unknown"
