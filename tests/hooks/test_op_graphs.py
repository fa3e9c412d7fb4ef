"""Autograd graphs at op level: checkpoints, double backward, retained graphs, users' own hooks, leaves."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


@pytest.fixture(autouse=True)
def closed() -> Any:
    torch.manual_seed(0)
    yield
    nanscan.disable()


def errors(scanner: Any) -> list[Any]:
    scanner.flush()
    return [event for event in scanner.events if event.severity == "error"]


class Block(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        if self.how == "forward":
            return torch.log(h - 100)  # forward fault
        return torch.sqrt(h * 0)  # backward fault


class Checkpointed(nn.Module):
    def __init__(self, how: str, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.block = Block(how)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_fault_inside_a_checkpoint_is_told_once(reentrant: bool) -> None:
    net = Checkpointed("forward", reentrant)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        net(torch.ones(2, 4)).sum().backward()
        (event,) = errors(scanner)
    assert (event.op, event.module, event.phase) == ("aten::log", "block", "forward")
    assert "# forward fault" in event.source
    assert not any("second time" in text for text in event.evidence)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_fault_inside_a_checkpoint_has_module_and_line(reentrant: bool) -> None:
    net = Checkpointed("backward", reentrant)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        net(torch.ones(2, 4)).sum().backward()
        (event,) = errors(scanner)
    assert (event.op, event.module, event.phase) == ("SqrtBackward0", "block", "backward")
    assert "# backward fault" in event.source
    # A re-entrant checkpoint builds its graph in the second forward only; the other kind keeps the first one's.
    assert any("activation checkpointing" in text for text in event.evidence) is reentrant


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_train_the_same_to_the_bit(reentrant: bool) -> None:
    grads = []
    for watched in (False, True):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        x = torch.randn(5, 4, requires_grad=True)
        scanner = nanscan.enable(net, level="op") if watched else None
        checkpoint(net, x, use_reentrant=reentrant).square().sum().backward()
        if scanner is not None:
            scanner.close()
            assert scanner.first is None
        grads.append([x.grad, *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_double_backward_goes_back_to_the_line_of_the_forward() -> None:
    x = torch.zeros(3, requires_grad=True)
    with nanscan.trace(on_anomaly="record") as scanner:
        y = (x**1.5).sum()  # its second derivative at zero is infinite
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        first.sum().backward()
        (event,) = errors(scanner)
    assert (event.phase, event.op) == ("backward", "PowBackward0")
    assert "# its second derivative at zero is infinite" in event.source


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * torch.sqrt(x * x * x * x)  # fine once, not twice


def test_double_backward_through_a_python_backward_has_its_line() -> None:
    x = torch.zeros(3, requires_grad=True)
    with nanscan.trace(on_anomaly="record") as scanner:
        (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        first.sum().backward()
        (event,) = errors(scanner)
    assert (event.phase, event.op) == ("backward", "SqrtBackward0")
    assert "# fine once, not twice" in event.source


def test_a_retained_graph_is_judged_each_time() -> None:
    x = torch.zeros(2, requires_grad=True)
    with nanscan.trace(on_anomaly="record") as scanner:
        y = x.sqrt()
        fine = torch.zeros(2)  # 0 * Inf would be NaN: an incoming gradient of zero makes it bad as well
        y.backward(torch.ones(2), retain_graph=True)
        assert [event.op for event in errors(scanner)] == ["SqrtBackward0"]
        scanner.step()
        y.backward(fine)
        assert [(event.step, event.op, event.kind) for event in errors(scanner)] == [
            (0, "SqrtBackward0", "inf"),
            (1, "SqrtBackward0", "nan"),
        ]


def test_several_backward_passes_in_a_step() -> None:
    net = nn.Linear(3, 1)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        net(torch.ones(2, 3)).sum().backward()
        net(torch.ones(2, 3)).sub(net(torch.ones(2, 3)).detach()).sqrt().sum().backward()
        (event,) = errors(scanner)
    assert (event.op, event.step) == ("SqrtBackward0", 0)


def test_a_hook_of_the_users_that_spoils_a_gradient() -> None:
    """The engine calls it between two nodes, so the op it runs is named itself."""
    x = torch.ones(3, requires_grad=True)
    with nanscan.trace(on_anomaly="record") as scanner:
        h = x * 2
        h.register_hook(lambda grad: grad / 0)  # the hook of the user
        h.sum().backward()
        (event,) = errors(scanner)
    assert event.phase == "backward"
    assert event.op == "aten::div"
    assert "# the hook of the user" in event.source


def test_gradients_of_leaves_and_of_other_tensors() -> None:
    x = torch.zeros(3, requires_grad=True)
    with nanscan.trace(on_anomaly="record") as scanner:
        h = x + 0
        h.retain_grad()
        h.sqrt().sum().backward()
        (event,) = errors(scanner)
    assert event.op == "SqrtBackward0"
    assert torch.isinf(h.grad).all()
    assert torch.isinf(x.grad).all()
    assert any("a parameter's gradient" in text for text in event.evidence)


def test_an_op_that_is_registered_anew_gets_its_own_name() -> None:
    """A freed schema's address may serve the next op: what was cached by address must go with it."""
    for number in range(20):
        name = f"op{number}"
        with torch.library._scoped_library("nanscan_anew", "FRAGMENT") as library:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: torch.log(x - 5), "CPU")
            with nanscan.trace(on_anomaly="record") as scanner:
                getattr(torch.ops.nanscan_anew, name)(torch.zeros(2)).sum().item()
                (event,) = errors(scanner)
            assert event.op == f"nanscan_anew::{name}"
        gc.collect()
