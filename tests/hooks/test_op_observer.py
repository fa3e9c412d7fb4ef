"""The op level as a whole program sees it: what is named, and what is seen or counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import nn

import nanscan
from nanscan.backends import get

NATIVE = get().core is not None
pytestmark = pytest.mark.skipif(not NATIVE, reason="the op level needs the compiled core")
NAN = float("nan")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    nanscan.disable()


class Net(nn.Module):
    """Linear, something, linear."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor] = torch.tanh, width: int = 4) -> None:
        super().__init__()
        self.a, self.b, self.middle = nn.Linear(width, width), nn.Linear(width, 1), middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.middle(self.a(x)))


def train(model: nn.Module, x: torch.Tensor, steps: int = 1, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def first_of(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        train(model, x, **options)
        scanner.flush()
        return scanner.first


# ---- what is named


def test_op_of_a_torch_library() -> None:
    with torch.library._scoped_library("nanscan_test", "DEF") as library:
        library.define("spoil(Tensor x) -> Tensor")
        library.impl("spoil", lambda x: x.clone().fill_(1).log_().div_(0), "CPU")
        net = Net(lambda h: h + torch.ops.nanscan_test.spoil(h.detach()))
        first = first_of(net, torch.ones(2, 4))
    assert (first.role, first.op, first.module, first.phase) == ("origin", "nanscan_test::spoil", "", "forward")
    assert "torch.ops.nanscan_test.spoil(h.detach())" in first.source


def test_an_op_that_reads_and_writes_a_bad_tensor_keeps_its_source() -> None:
    data = torch.tensor([1.0, NAN, 3.0])
    with nanscan.trace(on_anomaly="record") as scanner:
        data.mul_(2).sub_(1)
        data.sum().item()
        scanner.flush()
        (event,) = scanner.events
    assert (event.role, event.reader, event.severity) == ("external", "aten::mul_", "error")


def test_a_buffer_that_holds_inf_from_the_start_is_a_bound() -> None:
    net = Net()
    net.register_buffer("best", torch.tensor([float("inf"), float("-inf")]))
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        train(net, torch.ones(2, 4), steps=3)
        scanner.flush()
        assert scanner.events == ()


def test_gradients_that_overflow_as_they_are_summed() -> None:
    torch._dynamo.utils.counters.clear()  # where code was compiled, it might have made the sum: no name then
    net = nn.Linear(1, 1, bias=False).half()
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        for _ in range(2):  # 40,000 each: their sum has no float16
            (net(torch.full((1, 1), 200.0).half()) * 200).sum().backward()
        scanner.flush()
        event = scanner.first
    assert (event.phase, event.op, event.tensor, event.kind) == (
        "backward", "torch::autograd::AccumulateGrad", "weight", "inf",
    )  # fmt: skip


def test_a_nan_that_is_computed_with_is_not_meant_and_one_that_is_filled_in_is() -> None:
    with nanscan.trace(on_anomaly="record") as scanner:
        marked = torch.full((3,), NAN).masked_fill(torch.tensor([True, False, True]), NAN)
        torch.nan_to_num(marked, 0.0).sum().item()
        scanner.flush()
        assert scanner.first is None
        (torch.ones(3) * NAN).sum().item()
        scanner.flush()
        assert (scanner.first.op, scanner.first.role) == ("aten::mul", "origin")


class Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        fine = grad * 2
        return fine / 0.0  # the line of the fault


class Spoiler(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Spoil.apply(x)


def test_backward_of_a_custom_function() -> None:
    first = first_of(nn.Sequential(nn.Linear(4, 4), Spoiler(), nn.Linear(4, 1)), torch.ones(2, 4))
    assert (first.role, first.op, first.module, first.phase) == ("origin", "SpoilBackward", "1", "backward")
    assert "# the line of the fault" in first.source


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("how", ["foreach", "fused", None])
def test_update_that_spoils_a_parameter(make: Any, how: str | None) -> None:
    net = Net()
    options = {how: True} if how else {"foreach": False}
    optimizer = make(net.parameters(), lr=float("inf"), **options)
    first = first_of(net, torch.ones(2, 4), optimizer=optimizer)
    assert (first.severity, first.phase) == ("error", "optimizer")


def test_clipping_smears_and_the_node_stays_the_first() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Spoiler(), nn.Linear(4, 1))
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        net(torch.ones(2, 4)).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        scanner.flush()
        assert (scanner.first.op, scanner.first.phase) == ("SpoilBackward", "backward")
        assert len([e for e in scanner.events if e.severity == "error"]) == 1


def test_a_forward_on_another_thread() -> None:
    net = Net(torch.log)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        worker = threading.Thread(target=train, args=(net, -10 * torch.ones(2, 4)))
        worker.start()
        worker.join()
        scanner.flush()
        assert (scanner.first.op, scanner.first.module) == ("aten::log", "")


def test_many_threads_at_once() -> None:
    net = Net()
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner, torch.no_grad():
        workers = [threading.Thread(target=lambda: [net(torch.ones(8, 4)) for _ in range(50)]) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        scanner.flush()
        assert scanner.first is None


def test_inference_mode() -> None:
    net = Net(torch.log)
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner, torch.inference_mode():
        net(-10 * torch.ones(2, 4))
        scanner.flush()
        assert (scanner.first.op, scanner.first.phase) == ("aten::log", "forward")


def test_beside_the_profiler() -> None:
    net = Net(torch.log)
    with torch.profiler.profile() as profile:
        first = first_of(net, -10 * torch.ones(2, 4))
    assert first.op == "aten::log"
    assert any(row.key == "aten::log" for row in profile.key_averages())


# ---- what must not crash: what is inside is seen, or it is counted


def test_vmap_and_grad_see_the_op_inside() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x).sum()

    for run in (torch.vmap(torch.log), torch.func.grad(loss), torch.vmap(torch.func.grad(loss))):
        with nanscan.enable(level="op", on_anomaly="record") as scanner:
            run(torch.ones(2, 3))
            scanner.flush()
            assert scanner.stats["scans"] > 0
    with nanscan.enable(level="op", on_anomaly="record") as scanner:
        nanscan.check(torch.vmap(torch.log)(-torch.ones(2, 3)), "result")
        assert scanner.first.op == "aten::log"


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with nanscan.enable(level="op", on_anomaly="record") as scanner:
        with FakeTensorMode():
            assert torch.log(torch.ones(3)).shape == (3,)
        assert scanner.first is None


def test_a_subclass_is_seen_through() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with nanscan.enable(level="op", on_anomaly="record") as scanner:
        out = torch.log(TwoTensor(-torch.ones(3), torch.ones(3)))
        nanscan.check(out.a, "inner")
        assert scanner.first.op == "aten::log"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_and_quantized() -> None:
    with nanscan.enable(level="op", on_anomaly="record") as scanner:
        sparse = torch.eye(3).to_sparse()
        torch.sparse.mm(sparse, torch.ones(3, 3)).sum()
        (sparse + sparse).coalesce()
        torch.dequantize(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8))
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        assert scanner.first is None
        assert scanner.stats["unscanned"] > 0
