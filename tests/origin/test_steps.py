"""Across steps: repeats, memory, allowances, and what events carry."""

from __future__ import annotations

import math
import time

import pytest

from nanscan.events import AllowList, Event


def poison(sim):
    """A step whose forward goes wrong and whose update leaves every parameter bad."""
    sim.forward(out="nan", a="nan", head="nan")
    sim.param_grads()
    sim.values()
    events = sim.end()
    assert [event.severity for event in events] == ["error"]


def poisoned_step(sim, value):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    events = sim.decide("forward")
    sim.param_grads()
    sim.values()
    return events + sim.end()


def test_steps_after_poisoned_parameters_are_counted_not_told(sim, value):
    poison(sim)
    for _ in range(50):
        assert poisoned_step(sim, value) == []
    assert sim.origin.counts["repeats"] == 50
    assert sim.origin.aftermath.later_steps == 50


def test_the_running_step_counts_as_soon_as_it_is_known_to_be_bad(sim, value):
    poison(sim)
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    assert sim.decide("forward") == []
    assert sim.origin.aftermath.later_steps == 1
    assert sim.end() == []
    assert sim.origin.aftermath.later_steps == 1


def test_a_site_that_goes_wrong_again_with_clean_parameters_is_an_error_again(sim):
    for _ in range(3):
        sim.forward(out="nan", a="nan", head="nan")
        assert [event.module for event in sim.end()] == ["a"]


def test_after_the_parameters_were_repaired_errors_are_told_again(sim):
    poison(sim)
    sim.forward()
    sim.values("ok")
    assert sim.decide("optimizer") + sim.end() == []
    sim.forward(out="nan", a="ok", head="nan")
    assert [event.module for event in sim.end()] == ["head"]


def test_a_bad_parameter_that_nobody_reads_explains_nothing(sim):
    sim.forward()
    sim.values(names=["b.weight"])
    assert len(sim.end()) == 1
    sim.forward()
    sim.values(names=["b.weight"])
    assert sim.end() == []
    sim.forward(out="nan", a="nan", head="nan")
    assert [event.module for event in sim.end()] == ["a"]


def test_an_unrelated_optimizer_free_forward_does_not_forget(sim, value):
    poison(sim)
    assert poisoned_step(sim, value) == []


def test_the_work_of_a_poisoned_step_is_bounded(sim, value):
    """GIVEN poisoned parameters WHEN a step writes 40000 records THEN it keeps a few hundred of them."""
    poison(sim)
    with sim.call("", [value()], root=True) as root:
        h = root.inputs[0]
        for _ in range(3000):
            h = sim.leaf("a", [h], "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    sim.decide("forward")
    assert sim.origin._state.facts.n_records < 1000
    assert sim.end() == []


def test_a_step_that_never_ends_does_not_grow(sim):
    for _ in range(500):
        sim.forward()
        assert sim.decide("forward") == []
    assert len(sim.origin._state.facts.enters) == 1
    assert len(sim.origin._state.facts.inputs) == 1


def test_a_wide_bad_forward_is_quick_to_judge(sim, value):
    with sim.call("", [value()], root=True) as root:
        h = root.inputs[0]
        for _ in range(2000):
            h = sim.leaf("a", [h], "nan")
        root.out = "nan"
    begin = time.perf_counter()
    assert len(sim.decide("forward")) == 1
    assert time.perf_counter() - begin < 2.0  # guards against quadratic work only


def test_state_of_a_step_is_dropped_at_its_boundary(sim):
    sim.forward(out="nan", a="nan")
    sim.end()
    assert sim.origin._state.facts.n_records == 0


def test_an_unknown_point_is_refused(sim):
    with pytest.raises(ValueError, match=r"decide\(point='middle'\): use one of 'forward'"):
        sim.origin.decide("middle")


# ---- allow


@pytest.mark.parametrize(
    ("pattern", "kinds", "expected"),
    [
        pytest.param("a", None, ["head"], id="module"),
        pytest.param("[ax]", ["nan"], ["head"], id="glob and kind"),
        pytest.param("a", ["inf"], ["a", "head"], id="another kind"),
        pytest.param("b", None, ["a", "head"], id="another module"),
    ],
)
def test_an_allowed_origin_is_counted_and_hides_nothing(make_sim, value, pattern, kinds, expected):
    allow = AllowList()
    handle = allow.allow(pattern, kinds)
    sim = make_sim(allow=allow)
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan")
        sim.leaf("head", root.inputs, "nan")
        root.out = "nan"
    assert [event.module for event in sim.end()] == expected
    assert handle.count == (0 if "a" in expected else 1)
    handle.remove()
    sim.forward(out="nan", a="nan", head="nan")
    assert [event.module for event in sim.end()] == ["a"]


def test_allowed_checks_and_parameters(make_sim):
    allow = AllowList()
    allow.allow("loss")
    allow.allow("*.weight")
    sim = make_sim(allow=allow)
    sim.forward()
    sim.check("loss", "nan")
    sim.values(names=["a.weight"])
    assert sim.end() == []


# ---- what an event carries


def test_fields(sim, value):
    sim.step, sim.batch = 3, 12
    with sim.call("", [value()], root=True) as root:
        h = sim.leaf("a", root.inputs)
        with sim.call("block", [h]) as block:
            block.out = ["ok", "both"]
        sim.leaf("head", [block.value[1]], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert isinstance(event, Event)
    assert (event.kind, event.module, event.module_type, event.output_index) == ("both", "block", "Block", 1)
    assert (event.step, event.batch, event.rank, event.device, event.dtype) == (3, 12, 0, "cpu", "float32")
    assert event.shape == (4, 8)
    assert event.first_bad_index == 9
    assert (event.stats.nan, event.stats.posinf, event.stats.numel) == (1, 1, 32)
    assert event.inputs["input 0"].nonfinite == 0
    assert event.chain == ("block", "head", "Net")
    assert event.evidence[0] == "output[1] holds 1 NaN, 1 +Inf among 32 elements"
    assert "its inputs were finite, max|x| 2" in event.evidence
    assert "2 later module outputs are bad in the same step" in event.evidence
    assert event.time == 7.0
    assert event.seq > 0
    assert "nanscan.check" in event.remedy
    assert math.isclose(event.stats.absmax, 2.0)


def test_the_chain_is_bounded(sim, value):
    with sim.call("", [value()], root=True) as root:
        h = root.inputs[0]
        for name in ("a", "b", "block.norm", "block.fc", "block.mask", "head", "block", "a"):
            h = sim.leaf(name, [h], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert len(event.chain) == 8
    assert (event.chain[0], event.chain[-1]) == ("a", "Net")


def test_an_overflow_says_how_close_the_numbers_were(sim, value):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "inf", high=3.0e38)
        root.out = "inf"
    (event,) = sim.decide("forward")
    assert any("of the largest float32" in text for text in event.evidence)
