"""What the op level promises a program: the same bits, nothing kept, nothing left behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanscan
from nanscan.backends import get
from nanscan.record import Flag

NATIVE = get().core is not None
pytestmark = pytest.mark.skipif(not NATIVE, reason="the op level needs the compiled core")


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


# ---- what must not change


class GPT(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(19, d), nn.Embedding(8, d)
        self.layer = nn.TransformerEncoderLayer(d, 2, 2 * d, dropout=0.1, batch_first=True)
        self.head = nn.Linear(d, 19, bias=False)
        self.head.weight = self.tok.weight

    def loss(self) -> torch.Tensor:
        ids = torch.randint(0, 19, (4, 9))
        mask = torch.full((8, 8), float("-inf")).triu(1)
        x = self.layer(self.tok(ids[:, :-1]) + self.pos.weight, src_mask=mask)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids[:, 1:].flatten())


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Linear(36, 3)

    def loss(self) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(torch.randn(6, 1, 8, 8))), torch.randint(0, 3, (6,)))


class Straight(torch.autograd.Function):
    """Hands the gradient on unchanged: the very same tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net(Straight.apply)

    def loss(self) -> torch.Tensor:
        return self.net(torch.randn(6, 4)).square().mean()


STEPS = 20


def numbers(make: Any, watch: bool) -> list[list[torch.Tensor]]:
    """Every number that training makes, a list per step."""
    torch.manual_seed(3)
    model = make()
    scanner = nanscan.enable(model, level="op", on_anomaly="raise") if watch else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        seen.append([loss.detach().clone(), *gradients, *(v.clone() for v in model.state_dict().values())])
    if scanner is not None:
        assert scanner.first is None
        assert scanner.stats["scans"] > 5 * STEPS
        scanner.close()
    return seen


@pytest.mark.parametrize("make", [GPT, CNN, Custom])
def test_training_is_the_same_to_the_bit(make: Any) -> None:
    free, watched = numbers(make, False), numbers(make, True)
    for step, (a, b) in enumerate(zip(watched, free, strict=True)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert torch.equal(x, y), f"step {step}, tensor {i}"


def test_two_gradients_of_a_sum_stay_two_tensors() -> None:
    a, b, w = (nn.Parameter(torch.randn(3)) for _ in range(3))
    with nanscan.enable(level="op", on_anomaly="record"):
        ((a + b) * w).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()
    a.grad.zero_()
    assert torch.equal(b.grad, w)


# ---- what must not be kept


def test_a_healthy_step_writes_no_call_record() -> None:
    net = Net()
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        drained: list[Any] = []
        add = scanner._health.add
        scanner._health.add = lambda records: (drained.append(records), add(records))
        train(net, torch.ones(2, 4), steps=5)
        scanner.flush()
        assert sum(int((r["flags"] & int(Flag.CALL) != 0).sum()) for r in drained) == 0


def test_nothing_is_retained_after_a_step() -> None:
    alive: list[Any] = []

    def middle(h: torch.Tensor) -> torch.Tensor:
        h = torch.exp(h)
        alive.append(weakref.ref(h.untyped_storage()))
        h.register_hook(lambda g: alive.append(weakref.ref(g)))
        return h

    net = Net(middle)
    with nanscan.enable(net, level="op", on_anomaly="record"):
        train(net, torch.ones(2, 4), steps=3)
        gc.collect()
        assert len(alive) == 6
        assert all(ref() is None for ref in alive)


def test_a_failing_backward_keeps_nothing() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            alive.append(weakref.ref(grad))
            raise ZeroDivisionError

    alive: list[Any] = []
    net = Net(Fails.apply)
    with nanscan.enable(net, level="op", on_anomaly="record"):
        loss = net(torch.ones(2, 4)).sum()
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        del loss
        gc.collect()
        assert alive[0]() is None
        train(Net(), torch.ones(2, 4))


def test_the_table_does_not_grow() -> None:
    net = Net()
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        train(net, torch.ones(2, 4), steps=20)
        before = scanner._core.n_storages()
        train(net, torch.ones(2, 4), steps=200)
        assert scanner._core.n_storages() <= before + 16


def test_no_callback_is_left_after_close() -> None:
    net = Net()
    scanner = nanscan.enable(net, level="op", on_anomaly="record")
    train(net, torch.ones(2, 4))
    core = scanner._core
    scanner.close()
    scans = core.counters()["scans"]
    train(Net(torch.log), -torch.ones(2, 4))
    assert core.counters()["scans"] == scans
    assert core.n_storages() == 0


def test_a_second_op_level_scanner_is_refused() -> None:
    first, second = Net(torch.log), Net()
    scanner = nanscan.enable(first, level="op", on_anomaly="record")
    with pytest.raises(nanscan.NanscanError, match=r"close\(\) that one first"):
        nanscan.enable(second, level="op")
    # THEN the refused one leaves no hook, and the first goes on
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in second.modules()] == [0, 0, 0]
    train(first, -10 * torch.ones(2, 4))
    assert scanner.first.op == "aten::log"
    nanscan.disable()
    nanscan.enable(second, level="op").close()
