"""Kinds of code and of tensors at op level: seen, or counted and said. What could not be read hides nothing later."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.utils.counters.clear()  # what another test has compiled would make causes less certain here
    yield
    nanscan.disable()
    torch._dynamo.reset()


@pytest.fixture
def scanner() -> Any:
    return nanscan.trace(on_anomaly="record")


def first(scanner: Any) -> Any:
    scanner.flush()
    assert scanner.first is not None
    return scanner.first


def test_jagged_tensors_are_seen_inside(scanner: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged)
    torch.log(nested - 100).values().sum().item()
    assert (first(scanner).op, first(scanner).role) == ("aten::log", "origin")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_counted_and_hide_nothing(scanner: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)])
    nested = nested * 2
    assert scanner.first is None
    assert scanner.stats["unscanned"] > 0
    torch.log(torch.full((2,), -1.0)).sum().item()
    assert first(scanner).op == "aten::log"


def test_an_op_that_raises_hides_nothing_later(scanner: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2, 3) @ torch.ones(2, 3)
    torch.log(torch.full((2,), -1.0)).sum().item()
    assert first(scanner).op == "aten::log"


def test_autocast_overflow_is_that_of_the_low_precision_op() -> None:
    net = nn.Linear(8, 8)
    nn.init.constant_(net.weight, 300.0)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(torch.full((2, 8), 300.0))
        out.sum().item()
        event = first(scanner)
    assert (event.op, event.module, event.dtype, event.kind) == ("aten::addmm", "", "float16", "inf")


def test_moving_averages_carry_what_the_weights_hold(scanner: Any) -> None:
    net = nn.Linear(4, 4)
    average = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        net.weight.div_(0 * net.weight)  # the fault
        for mean, new in zip(average, net.parameters(), strict=True):
            mean.mul_(0.9).add_(new, alpha=0.1)
        torch._foreach_lerp_(average, list(net.parameters()), 0.5)
    average[0].sum().item()
    assert (first(scanner).op, first(scanner).role) == ("aten::div_", "origin")
    assert "# the fault" in first(scanner).source
    assert len([e for e in scanner.events if e.severity == "error"]) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_code_is_eager_code_to_the_dispatcher(scanner: Any) -> None:
    torch.jit.script(_log)(torch.ones(3)).sum().item()
    assert first(scanner).op == "aten::log"


def _log(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x - 5)


def test_skipped_steps_of_a_grad_scaler_are_expected() -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale((1e3 * net(torch.ones(8, 4))).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        scanner.flush()
        assert scanner.first is None
        assert scanner.stats["skips"] >= 2


def test_a_learning_rate_that_is_not_finite_names_the_update_and_the_parameter() -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=float("nan"))
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        event = first(scanner)
    assert (event.phase, event.role) == ("optimizer", "origin")
    assert event.tensor in ("weight", "bias")


# ---- torch.compile


class Bad(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 100)


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.linear(x))


def compiled(backend: str, inner: nn.Module) -> list[Any]:
    model = torch.compile(nn.Sequential(Block(nn.Tanh()), Block(inner), Block(nn.Tanh())), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()  # the line of the call
            optimizer.step()
        scanner.flush()
        return [event for event in scanner.events if event.severity in ("error", "warning")]


@pytest.mark.slow
def test_inside_a_compiled_region_the_module_is_the_smallest_thing_seen() -> None:
    (event,) = compiled("inductor", Bad())
    assert (event.role, event.phase, event.module, event.op) == ("origin", "forward", "1.inner", "torch.compile")
    assert "# the line of the call" in event.source
    assert all(not stats.nonfinite for stats in event.inputs.values())


def test_a_backend_that_runs_op_by_op_has_its_ops_seen() -> None:
    (event,) = compiled("aot_eager", Bad())
    assert (event.role, event.phase, event.op) == ("origin", "forward", "aten::log")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_healthy_compiled_training_is_silent(backend: str) -> None:
    assert compiled(backend, nn.Tanh()) == []


def test_a_compiled_backward_is_one_node(scanner: Any) -> None:
    x = torch.zeros(3, requires_grad=True)
    torch.compile(lambda x: torch.sqrt(x) * 2, backend="aot_eager")(x).sum().backward()
    event = first(scanner)
    assert (event.role, event.phase, event.op) == ("origin", "backward", "CompiledFunctionBackward")


@pytest.mark.slow
def test_a_compiled_function_without_modules_is_said_to_be_unseen(scanner: Any) -> None:
    torch.compile(lambda x: torch.log(x - 5))(torch.ones(3)).sum().item()
    event = first(scanner)
    assert (event.role, event.reader, event.cause) == ("external", "aten::sum", "unknown")
    assert "no observed op made it: it was handed in, or torch.compile's code made it" in event.evidence


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_running_statistics_are_written_by_the_batch_norm(bad: float) -> None:
    """Their update is not in the op's schema; a bad batch is the data's fault, and not memory written behind us."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = torch.randn(5, 3)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        model(x).sum().backward()
        scanner.step()
        rows = x.numpy().copy()
        rows[2, 1] = bad
        model(torch.from_numpy(rows)).sum().backward()
        scanner.step()
        model(x).sum().backward()
    errors = [event for event in scanner.events if event.severity == "error"]
    assert [(event.phase, event.cause, event.step) for event in errors] == [("data", "bad input data", 1)]


def test_running_statistics_in_evaluation_are_read() -> None:
    model = nn.BatchNorm1d(2).eval()
    model.running_var.data.numpy()[1] = -1.0
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        model(torch.ones(3, 2))
    assert scanner.first is not None
    assert scanner.first.cause == "sqrt of a negative number"
    assert "running_var holds values down to -1, and native_batch_norm takes its square root" in scanner.first.evidence
