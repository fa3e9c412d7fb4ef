"""What to do next: something that can be done to this kind of place."""

from __future__ import annotations

import importlib.util

import pytest

from nanscan.origin.torch_nn import TORCH_NN

MODULES = {
    "own code": ("block", "put nanscan.check(tensor, 'name') inside block to find the line"),
    "torch's, with parameters": (
        "a", "check what a reads and its parameters: print(nanscan.scan(model.get_parameter('a.weight')))"
    ),
    "torch's, without": (
        "block.norm", "check what block.norm reads: put nanscan.check(tensor, 'name') before it is called"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("module", "remedy"), MODULES.values(), ids=MODULES)
def test_nobody_is_sent_into_torchs_own_code(sim, value, module, remedy):
    with sim.call("", [value()], root=True) as root:
        sim.leaf(module, root.inputs, "nan")
        root.out = "nan"
    assert sim.decide("forward")[0].remedy == remedy


def test_a_parameter_is_had_by_a_call_that_works(sim, value):
    with sim.call("", [value()], root=True) as root:
        sim.leaf("a", root.inputs, "nan", params=[("a.weight", "nan")])
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert event.tensor_kind == "parameter"
    assert event.remedy.startswith("print(nanscan.scan(model.get_parameter('a.weight'))) after loading")


def test_the_maker_of_the_neginf_that_a_nan_came_out_of(sim, value):
    # GIVEN log(0) in a user's module, whose -Inf goes through a container into a layer of torch
    with sim.call("", [value()], root=True) as root:
        with sim.call("block", root.inputs) as block:
            h = sim.leaf("block.mask", block.inputs, "-inf")
            block.out = sim.leaf("block.norm", [h], "-inf")
        sim.leaf("head", [block.value], "nan")
        root.out = "nan"
    (event,) = sim.decide("forward")
    assert event.module == "head"
    assert "it had -Inf at hand, made by block.mask" in event.evidence
    assert event.remedy == "put nanscan.check(tensor, 'name') inside block.mask, which made the Inf, to find the line"


def test_the_names_are_those_of_torch_nn():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    there = {name for name in dir(torch.nn) if isinstance(getattr(torch.nn, name), type)}
    newer = {"LinearCrossEntropyLoss"}  # than the oldest torch that is supported
    assert TORCH_NN - newer <= there
    assert {"Linear", "Conv2d", "Softmax", "Sequential", "MultiheadAttention"} <= TORCH_NN
