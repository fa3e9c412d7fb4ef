"""The op level as a whole program sees it: what is named, that nothing is changed, and that nothing is kept."""

from __future__ import annotations

import gc
import threading
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
