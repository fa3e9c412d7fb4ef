"""Who is to blame for the first bad gradient."""

from __future__ import annotations

import pytest

from nanscan.record import Phase

PARAMETERS = ("a.weight", "b.weight", "block.fc.weight", "head.weight", "head.bias")


def run_forward(sim, value):
    """root(a, block(norm, fc), head); returns the frames by name."""
    frames = {}
    with sim.call("", [value()], root=True) as frames[""]:
        with sim.call("a", frames[""].inputs) as frames["a"]:
            pass
        with sim.call("block", [frames["a"].value]) as frames["block"]:
            with sim.call("block.norm", frames["block"].inputs) as frames["block.norm"]:
                pass
            with sim.call("block.fc", [frames["block.norm"].value]) as frames["block.fc"]:
                pass
        with sim.call("head", [frames["block"].value]) as frames["head"]:
            pass
    assert sim.decide("forward") == []
    return frames


READERS = [
    pytest.param(["head"], "head", id="one reader"),
    pytest.param(["block", "block.norm"], "block.norm", id="descends while one reader is inside"),
    pytest.param(["block.norm", "block"], "block.norm", id="whatever the order"),
    pytest.param(["block", "block.norm", "block.fc"], "block", id="several siblings: the one around them"),
    pytest.param(["block.norm", "block.fc"], "block.norm", id="several siblings with none around: the first"),
]


@pytest.mark.parametrize(("readers", "module"), READERS)
def test_a_reader_of_the_value_is_blamed(sim, value, brief, readers, module):
    frames = run_forward(sim, value)
    sim.grad("nan", producers=[frames["a"]], readers=[frames[name] for name in readers])
    sim.param_grads(names=["a.weight"])
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", module, None)]
    assert sim.end() == []


PRODUCERS = [
    pytest.param(["a"], "", id="read by the root's own code"),
    pytest.param(["block.fc"], "block", id="read by the block's own code"),
    pytest.param(["block.fc", "block"], "", id="returned as it is by the block: read around the block"),
]


@pytest.mark.parametrize(("producers", "module"), PRODUCERS)
def test_without_a_reader_the_code_around_the_maker_is_blamed(sim, value, brief, producers, module):
    frames = run_forward(sim, value)
    sim.grad("inf", producers=[frames[name] for name in producers])
    sim.param_grads("inf", names=["a.weight"])
    (event,) = sim.decide("backward")
    assert brief([event]) == [("error", "origin", "backward", module, None)]
    assert event.kind == "inf"
    assert event.op is None


def test_a_bad_gradient_that_enters_the_root_output_was_born_in_the_loss_code(sim, value, brief):
    frames = run_forward(sim, value)
    sim.grad("nan", producers=[frames["head"], frames[""]])
    (event,) = sim.decide("backward")  # an error even before a parameter gradient is bad
    assert brief([event]) == [("error", "origin", "backward", None, None)]
    assert any("bad gradient enters the root's output" in text for text in event.evidence)


def test_a_block_run_again_by_checkpointing_is_not_the_root(sim, value, brief):
    frames = run_forward(sim, value)
    with sim.call("block", [value()]) as again:  # inside backward: no parent
        again.recompute = True
    sim.grad("nan", producers=[again])
    sim.param_grads(names=["a.weight"])
    assert frames[""].call
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", "", None)]


def test_only_the_first_bad_gradient_counts(sim, value, brief):
    frames = run_forward(sim, value)
    sim.grad("nan", producers=[frames["block"]], readers=[frames["head"]])
    sim.grad("nan", producers=[frames["a"]], readers=[frames["block"]])
    sim.param_grads(names=["a.weight"])
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", "head", None)]


def test_a_leaf_read_by_a_module_has_no_producer(sim, value, brief):
    frames = run_forward(sim, value)
    sim.grad("nan", readers=[frames["block.norm"]])
    sim.param_grads(names=["block.fc.weight"])
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", "block.norm", None)]


def test_a_gradient_that_is_dropped_is_info(sim, value, brief):
    frames = run_forward(sim, value)
    sim.grad("nan", producers=[frames["a"]], readers=[frames["head"]])
    assert sim.decide("backward") == []
    sim.values("ok")
    assert sim.decide("optimizer") == []
    assert brief(sim.end()) == [("info", "absorbed", "backward", "head", None)]


def test_a_gradient_that_reaches_a_parameter_by_the_optimizer_is_an_error(sim, value, brief):
    frames = run_forward(sim, value)
    sim.grad("nan", producers=[frames["a"]], readers=[frames["head"]])
    assert sim.decide("backward") == []
    sim.values("nan", names=["a.weight"])
    assert brief(sim.decide("optimizer")) == [("error", "origin", "backward", "head", None)]


def test_bad_parameter_gradients_alone_name_the_one_closest_to_the_loss(sim, value, brief):
    run_forward(sim, value)
    sim.param_grads(names=["a.weight", "block.fc.weight"])
    (event,) = sim.decide("backward")
    assert brief([event]) == [("error", "origin", "backward", "block.fc", "block.fc.weight")]
    assert "2 parameter gradients are bad" in event.evidence[1]


def test_all_parameter_gradients_bad_and_nothing_between_was_made_in_the_loss_or_a_compiled_backward(sim, value, brief):
    run_forward(sim, value)
    sim.param_grads()
    (event,) = sim.decide("backward")
    assert brief([event]) == [("error", "origin", "backward", None, "head.bias")]
    assert event.evidence[1].startswith("all 5 parameter gradients are bad and no gradient between modules was seen")
    assert not any("clip_grad_norm_" in text for text in event.evidence), "some of their elements are good"
    assert event.remedy.endswith("run these steps once without torch.compile")


@pytest.mark.parametrize(
    ("good", "names", "module"),
    [
        pytest.param([], PARAMETERS[:3], None, id="the others have no gradient"),
        pytest.param(["head.bias"], PARAMETERS[:3], "block.fc", id="one was good"),
        pytest.param([], PARAMETERS[3:], "head", id="of one module only"),
        pytest.param(["a"], PARAMETERS, "head", id="a good gradient between modules: backward was watched"),
    ],
)
def test_what_was_seen_good_tells_a_watched_backward_from_another(make_sim, value, good, names, module):
    sim = make_sim(seen_good=lambda: [sim.params[n] + 1 if n in sim.params else sim.base[n] + 2 for n in good])
    run_forward(sim, value)
    sim.param_grads(names=names)
    (event,) = sim.decide("backward")
    assert event.module == module


def test_gradients_after_an_escaped_forward_error_are_consequences(sim, value, brief):
    root = sim.forward(out="nan", a="nan", head="nan")
    assert len(sim.decide("forward")) == 1
    sim.grad("nan", producers=[root])
    sim.param_grads()
    assert sim.decide("backward") == []
    sim.values()
    assert sim.decide("optimizer") == []
    assert sim.end() == []
    after = sim.origin.aftermath
    assert (after.gradients, after.n_gradients, after.parameters) == (5, 5, 5)


# ---- the torch.where trap


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        pytest.param("block.fc", ("error", "origin", "forward", "block.fc", None), id="in the blamed module"),
        pytest.param("block", ("error", "origin", "forward", "block.fc", None), id="inside the blamed module"),
        pytest.param("head", ("error", "origin", "backward", "head", None), id="elsewhere: the backward origin"),
    ],
)
def test_an_absorbed_forward_value_becomes_the_error_when_its_gradient_is_bad(sim, value, brief, reader, expected):
    frames = {}
    with sim.call("", [value()], root=True) as root:
        with sim.call("a", root.inputs) as frames["a"]:
            pass
        h = [frames["a"].value]
        with sim.call("block", h) as frames["block"], sim.call("block.fc", h) as frames["block.fc"]:
            frames["block.fc"].out = "nan"
        with sim.call("head", [frames["block"].value]) as frames["head"]:
            pass
    assert sim.decide("forward") == []
    sim.grad("nan", producers=[frames["a"]], readers=[frames[reader]])
    sim.param_grads(names=["a.weight"])
    assert brief(sim.decide("backward")) == [expected]
    left = brief(sim.end())
    assert left == ([] if reader != "head" else [("info", "absorbed", "forward", "block.fc", None)])


def test_a_mask_is_not_promoted_by_a_bad_gradient_in_its_module(sim, value, brief):
    with sim.call("", [value()], root=True) as root, sim.call("block", root.inputs) as block:
        sim.leaf("block.mask", block.inputs, "-inf")
    sim.grad("nan", producers=[block], readers=[block])
    sim.param_grads(names=["a.weight"])
    assert brief(sim.decide("backward")) == [("error", "origin", "backward", "block", None)]


def test_neginf_in_the_root_output_is_promoted_by_a_bad_gradient_there(sim, value, brief):
    root = sim.forward(out="-inf", a="ok", head="-inf")
    assert sim.decide("forward") == []
    sim.grad("nan", producers=[root])
    sim.param_grads()
    assert brief(sim.decide("backward")) == [("error", "origin", "forward", "head", None)]
    assert sim.end() == []


# ---- GradScaler


def overflow(sim, value):
    frames = run_forward(sim, value)
    sim.grad("inf", producers=[frames["block"]], readers=[frames["head"]])
    sim.param_grads("inf")
    assert sim.decide("backward", scaler=True) == [], "backward waits for the scaler's verdict"


def test_a_skipped_step_is_expected(sim, value, brief):
    overflow(sim, value)
    (event,) = sim.end(scaler=True, skipped=True)
    assert event.severity == "info"
    assert "expected loss-scale skip" in event.evidence[-1]
    overflow(sim, value)
    assert sim.end(scaler=True, skipped=True) == [], "mentioned once"
    assert sim.origin.counts["skips"] == 2


def test_a_step_that_was_not_skipped_is_judged_as_any_other(sim, value, brief):
    overflow(sim, value)
    assert brief(sim.decide("optimizer", scaler=True)) == [("error", "origin", "backward", "head", None)]


def test_many_skips_in_a_row_are_errors_again(sim, value):
    severities = []
    for _ in range(18):
        overflow(sim, value)
        severities.append([event.severity for event in sim.end(scaler=True, skipped=True)])
    assert severities == [["info"], *[[]] * 15, ["error"], ["error"]]


def test_a_good_step_ends_the_row_of_skips(sim, value):
    for _ in range(40):
        for skipped in (True,) * 10 + (False,):
            if skipped:
                overflow(sim, value)
            else:
                run_forward(sim, value)
            assert all(event.severity == "info" for event in sim.end(scaler=True, skipped=skipped))


def test_bad_forward_is_an_error_even_if_the_scaler_skips(sim, brief):
    sim.forward(out="nan", a="nan", head="nan")
    assert brief(sim.decide("forward", scaler=True)) == [("error", "origin", "forward", "a", None)]
    sim.param_grads()
    assert sim.end(scaler=True, skipped=True) == []


def test_gradients_unscaled_to_bad_in_a_skipped_step_are_expected(sim, value):
    run_forward(sim, value)
    sim.param_grads("inf", phase=Phase.OPTIMIZER)
    assert [event.severity for event in sim.end(scaler=True, skipped=True)] == ["info"]
