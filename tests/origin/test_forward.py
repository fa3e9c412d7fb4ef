"""Cause or carrier in the forward pass."""

from __future__ import annotations

import pytest

from nanscan.record import DType

ORIGIN_A = ("error", "origin", "forward", "a", None)


@pytest.mark.parametrize(
    ("a", "head", "out", "expected"),
    [
        pytest.param("nan", "nan", "nan", [ORIGIN_A], id="nan out, finite in"),
        pytest.param("both", "nan", "nan", [ORIGIN_A], id="nan and inf out, finite in"),
        pytest.param("inf", "inf", "inf", [ORIGIN_A], id="inf out, finite in"),
        pytest.param("inf", "nan", "nan", [ORIGIN_A], id="the nan made of an inf is a consequence"),
        pytest.param("ok", "nan", "nan", [("error", "origin", "forward", "head", None)], id="a later module"),
        pytest.param("ok", "ok", "nan", [("error", "origin", "forward", "", None)], id="the root's own code"),
        pytest.param("ok", "ok", "ok", [], id="healthy"),
    ],
)
def test_the_module_that_turns_bad_with_good_inputs_is_the_origin(sim, brief, a, head, out, expected):
    sim.forward(out=out, a=a, head=head)
    assert brief(sim.decide("forward")) == expected
    assert sim.end() == []


def test_each_event_is_returned_once(sim):
    sim.forward(out="nan", a="nan")
    assert len(sim.decide("forward")) == 1
    assert [sim.decide(point) for point in ("forward", "backward", "optimizer", "boundary")] == [[]] * 4


def test_a_call_of_another_thread_is_not_judged_before_all_of_it_is_recorded(sim, value, brief):
    # GIVEN bad data, and a look at the ring when a thread has written what its first module made, but not what it read
    with sim.call("", [value("nan")], root=True) as root:
        begun = len(sim.records)
        root.out = sim.leaf("a", root.inputs, "nan")
        output, rest = sim.records[: begun + 1], sim.records[begun + 1 :]
        sim.records = output
        assert sim.decide("forward") == []
        sim.records = rest
    # THEN it waits for the rest, and is told as what it is
    assert [event[:3] for event in brief(sim.decide("forward"))] == [("error", "external", "data")]


def test_bad_data_is_told_by_its_first_reader_though_somebody_asked_before_it_got_out(sim, value, brief):
    with sim.call("", [value("nan")], root=True) as root:
        root.out = sim.leaf("a", root.inputs, "nan")
        assert sim.decide("backward") == []  # as a poll by another thread does
    assert [event[:4] for event in brief(sim.decide("forward"))] == [("error", "external", "data", "a")]
    assert sim.end() == []


def test_two_independent_origins_are_two_errors(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        sim.leaf("b", root.inputs, "nan")
        root.out = "nan"
    assert [event[3] for event in brief(sim.decide("forward"))] == ["a", "b"]


def test_an_inner_module_is_named_not_the_ones_around_it(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.leaf("block.norm", block.inputs, "nan")
            block.out = "nan"
        root.out = block.value
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "block.norm", None)]


# ---- born in the code between modules


def test_a_bad_tensor_that_nobody_returned_was_made_by_the_code_around(sim, value, brief):
    """WHEN the root computes exp(a(x)) = inf and head reads it THEN the root is the origin and head the reader."""
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs)
        sim.leaf("head", [value("inf")], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "origin", "forward", "", None)]
    assert event.reader == "head"
    assert event.kind == "inf"


def test_the_code_around_only_passed_on_what_a_child_returned(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        sim.leaf("head", [value("nan")], "nan")  # relu(a(x)): a new tensor
        root.out = "nan"
    assert brief(sim.decide("forward")) == [ORIGIN_A]


def test_a_nan_made_of_the_inf_that_came_into_the_parent_is_made_by_the_parent(make_sim, value, brief):
    """The inf is a's and is told; with a's inf allowed, the block's NaN comes out."""
    from nanscan.events import AllowList

    for allowed, module in ((False, "a"), (True, "block")):
        allow = AllowList()
        if allowed:
            allow.allow("a")
        sim = make_sim(allow=allow)
        with sim.call("", [value()], root=True) as root:
            h = sim.leaf("a", root.inputs, "inf")
            with sim.call("block", [h]) as block:
                sim.leaf("block.fc", [value("nan")], "nan")  # h - h
                block.out = "nan"
            root.out = "nan"
        assert brief(sim.decide("forward")) == [("error", "origin", "forward", module, None)]


def test_a_bad_tensor_handed_down_through_two_levels_is_a_carrier(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        h = sim.leaf("a", root.inputs, "nan")
        with sim.call("block", [h]) as block:
            sim.leaf("block.fc", [value("nan")], "nan")  # h.view(-1)
            block.out = "nan"
        root.out = "nan"
    assert brief(sim.decide("forward")) == [ORIGIN_A]


def test_outside_every_module(sim, value, brief):
    """A submodule called by itself with a bad tensor: no module made it."""
    sim.leaf("head", [value("nan")], "nan")
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", None, None)]


# ---- -Inf alone


def test_a_mask_is_no_alarm_and_no_origin(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("block.mask", root.inputs, "-inf")
        root.out = "ok"
    assert sim.decide("forward") == []
    assert brief(sim.end()) == [("info", "absorbed", "forward", "block.mask", None)]
    with sim.call("", [value()], root=True) as root:
        sim.leaf("block.mask", root.inputs, "-inf")
    assert sim.end() == [], "one mention is enough"


def test_a_fully_masked_softmax_is_the_origin_not_the_mask(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.leaf("block.mask", block.inputs, "-inf")
            sim.leaf("block.fc", [value("nan")], "nan")
            block.out = "nan"
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "block", None)]


def test_a_module_whose_input_holds_only_neginf_makes_its_own_nan(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        scores = sim.leaf("a", root.inputs, "-inf")
        sim.leaf("head", [scores], "nan")
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "head", None)]


def test_neginf_in_the_root_output_is_no_alarm(sim, brief):
    sim.forward(out="-inf", a="ok", head="-inf")
    assert sim.decide("forward") == []
    assert brief(sim.end()) == [("info", "origin", "forward", "head", None)]


def test_neginf_that_is_negated_into_the_output_is_promoted(sim, value, brief):
    """-log p with p = 0: the only explanation of the +inf is a's -inf."""
    with sim.call("", [value()], root=True) as root:
        logp = sim.leaf("a", root.inputs, "-inf")
        sim.leaf("head", [logp], "inf")
        root.out = "inf"
    assert brief(sim.decide("forward")) == [ORIGIN_A]


@pytest.mark.parametrize(
    ("low", "module"),
    [
        pytest.param(-60000.0, "a", id="overflow: numbers near the end beside it"),
        pytest.param(-5.0, "head", id="mask: moderate numbers beside it"),
        pytest.param(-65504.0, "head", id="mask made with finfo.min"),
    ],
)
def test_an_overflow_to_neginf_is_told_from_a_mask(sim, value, brief, low, module):
    with sim.call("", [value()], root=True) as root:
        h = sim.leaf("a", root.inputs, "-inf", low=low, dtype=DType.F16)
        sim.leaf("head", [h], "nan")
        root.out = "nan"
    assert [event[3] for event in brief(sim.decide("forward"))] == [module]


# ---- absorbed


def test_what_does_not_reach_the_root_output_is_info(sim, value, brief):
    with sim.call("", [value()], root=True) as root, sim.call("block", root.inputs) as block:
        sim.leaf("block.fc", block.inputs, "inf")
        block.out = "ok"  # sigmoid
    assert sim.decide("forward") == []
    assert sim.decide("backward") == []
    assert brief(sim.end()) == [("info", "absorbed", "forward", "block.fc", None)]
    assert sim.origin.counts["absorbed"] == 1


def test_a_value_that_leaves_a_module_by_a_side_way(sim, value, brief):
    # GIVEN a block whose own output is fine, and a later module that reads what another module made inside it
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            aside = sim.leaf("block.norm", block.inputs, "nan")
        sim.leaf("head", [aside], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert brief([event]) == [("error", "origin", "forward", "block.norm", None)]
    assert event.chain == ("block.norm", "head", "Net")


def test_a_side_way_that_is_absorbed_where_it_is_read_is_info(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            aside = sim.leaf("block.norm", block.inputs, "inf")
        sim.leaf("head", [aside], "ok")
    assert sim.decide("forward") == []
    assert brief(sim.end()) == [("info", "absorbed", "forward", "block.norm", None)]


def test_an_absorbed_value_does_not_hide_the_later_error(sim, value, brief):
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            sim.leaf("block.fc", block.inputs, "inf")
        sim.leaf("head", [block.value], "nan")
        root.out = "nan"
    assert brief(sim.decide("forward")) == [("error", "origin", "forward", "head", None)]


def test_lost_records_still_give_an_error(sim, value, brief):
    """A root that returns NaN with a NaN child of which the origin is not on record."""
    with sim.call("", [value()], root=True) as root:
        sim.calls += 1
        lost = value("nan", site=sim.base["a"], call=sim.calls)
        sim.leaf("head", [lost], "nan")
        root.out = "nan"
    ((severity, role, phase, module, _),) = brief(sim.decide("forward"))
    assert (severity, role, phase) == ("error", "origin", "forward")
    assert module == ""
