"""Wrapped calls of code that no dispatcher sees: what a whole program is told of them."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nanscan
from nanscan.backends import get
from nanscan.hooks import extension

NAN = float("nan")
LIBC = ctypes.CDLL(None)
native = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")
LEVELS = [pytest.param("op", marks=native), "module"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    nanscan.disable()
    assert not extension._watchers


# What "C++" does here: writes through numpy, so that no version is raised and no op is seen.


def spoil(y: torch.Tensor) -> None:
    y.detach().numpy()[0, 1] = NAN


def scaled(y: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(y.detach().numpy() * np.float32(NAN))


def fill(box: dict[str, Any], factor: float = NAN) -> None:
    """Writes into what stands deep inside its argument."""
    box["pair"][1].detach().numpy()[:] = factor


def spoil_array(y: np.ndarray) -> None:
    y[0, 1] = NAN


def harmless(y: torch.Tensor) -> float:
    return float(y.detach().numpy().sum())


def raising(y: torch.Tensor) -> None:
    raise KeyError("from the extension")


class Block(nn.Module):
    """Linear, the call, linear. `call` returns what goes on, or None: it wrote into its argument."""

    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.call = nn.Linear(4, 4), nn.Linear(4, 1), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        result = self.call(y)  # the call
        return self.b(y if result is None else y + result)


def watch(call: Callable[..., Any], level: str, steps: int = 1, **options: Any) -> Any:
    """Train a net with the call inside module "1"; the closed scanner."""
    net = nn.Sequential(nn.Linear(4, 4), Block(call))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanscan.enable(net, level=level, on_anomaly="record", **options) as scanner:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
    return scanner


def errors(scanner: Any) -> list[tuple[str, str | None, str | None, str]]:
    return [(e.role, e.op, e.module, e.phase) for e in scanner.events if e.severity == "error"]


WAYS = [
    pytest.param(spoil, lambda f: f, id="written-in-place"),
    pytest.param(scaled, lambda f: f, id="returned"),
    pytest.param(fill, lambda f: lambda y: f({"pair": (1, y)}), id="nested"),
    pytest.param(spoil_array, lambda f: lambda y: f(y.detach().numpy()), id="numpy"),
    pytest.param(
        LIBC.memset, lambda f: lambda y: f(ctypes.c_void_p(y.data_ptr() + 4), 255, 4) and None, id="ctypes-pointer"
    ),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("function", "use"), WAYS)
def test_the_call_is_named(function: Any, use: Any, level: str) -> None:
    scanner = watch(use(nanscan.extension(function, "lib::f")), level)
    assert errors(scanner) == [("origin", "lib::f", "1", "forward")]
    assert "lib::f" in scanner.report()
    assert scanner.first.stats.nan >= 1
    assert all(stats.nonfinite == 0 for stats in scanner.first.inputs.values())
    if level == "op":
        assert scanner.first.source.startswith(f"{__file__}:")
    else:
        assert scanner.first.chain[:2] == ("lib::f", "1.b")
        assert "all finite" in scanner.report(), "what it was given, as it was before the call"


@native
def test_the_line_is_that_of_the_call() -> None:
    scanner = watch(nanscan.extension(spoil), "op")
    assert scanner.first.op == "spoil"
    assert scanner.first.source.endswith("result = self.call(y)  # the call")


@pytest.mark.parametrize("level", LEVELS)
def test_an_address_as_a_plain_number(level: str) -> None:
    copy = nanscan.extension(ctypes.CFUNCTYPE(None, ctypes.c_size_t)(write_nan_at), "lib::at")
    assert errors(watch(lambda y: copy(y.data_ptr()), level)) == [("origin", "lib::at", "1", "forward")]


def write_nan_at(address: int) -> None:
    ctypes.c_float.from_address(address).value = NAN


@pytest.mark.parametrize("level", LEVELS)
def test_a_healthy_call_is_silent_and_changes_nothing(level: str) -> None:
    scanner = watch(lambda y: nanscan.extension(harmless)(y) and None, level, steps=3)
    assert scanner.events == ()
    losses = []
    for on in (False, True):
        torch.manual_seed(0)
        net = Block(nanscan.extension(lambda y: y.detach() * 2, "lib::twice"))
        with nanscan.enable(net, level=level) if on else threading.Lock():
            loss = net(torch.ones(2, 4)).square().mean()
            loss.backward()
        losses.append((loss.item(), [p.grad.clone() for p in net.parameters()]))
    assert losses[0][0] == losses[1][0]
    assert all(torch.equal(a, b) for a, b in zip(losses[0][1], losses[1][1], strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_bad_before_is_only_carried(level: str) -> None:
    # GIVEN a raw write that nobody wrapped, and then a wrapped call that only reads
    def call(y: torch.Tensor) -> None:
        spoil(y)
        reader(y)

    reader = nanscan.extension(harmless, "lib::reader")
    ((role, op, module, _),) = errors(watch(call, level))
    assert (role, module) == ("external", "1" if level == "op" else "1.b")
    # At op level the wrapped call is the first reader: the memory is known to be bad before it, and the line with it.
    assert op == ("lib::reader" if level == "op" else None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_that_only_a_later_module_reads(level: str) -> None:
    class Aside(nn.Module):
        def forward(self, h: torch.Tensor, victim: torch.Tensor) -> torch.Tensor:
            write(victim)
            return torch.tanh(h)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.aside, self.b = nn.Linear(4, 4), Aside(), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            h = self.aside(y * 2, y)
            return self.b(y) + h.sum()

    write = nanscan.extension(spoil, "lib::write")
    net = Net()
    with nanscan.enable(net, level=level, on_anomaly="record") as scanner:
        net(torch.ones(2, 4)).sum().backward()
    assert errors(scanner) == [("origin", "lib::write", "aside", "forward")]


@pytest.mark.parametrize("level", LEVELS)
def test_outside_every_module(level: str) -> None:
    write = nanscan.extension(spoil, "lib::write")
    net = nn.Linear(4, 2)
    with nanscan.enable(net, level=level, on_anomaly="record") as scanner:
        y = net(torch.ones(2, 4))
        write(y)
        y.sum().backward()
    assert errors(scanner)[0] == ("origin", "lib::write", None, "forward")
    assert len(errors(scanner)) == 1


@native
@pytest.mark.parametrize("left", [0, 1], ids=["filled", "one-left"])
def test_unfilled_memory_is_given_to_be_filled(left: int) -> None:
    def fill_all_but(y: torch.Tensor, out: torch.Tensor) -> None:
        out.numpy().reshape(-1)[left:] = y.detach().numpy().reshape(-1)[left:]

    def call(y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(2, 4)
        out.numpy()[:] = float("inf")  # what may happen to be there
        into(y, out)
        return out

    into = nanscan.extension(fill_all_but, "lib::into")
    scanner = watch(call, "op")
    assert errors(scanner) == ([("origin", "lib::into", "1", "forward")] if left else [])
    assert left or scanner.events == ()


@pytest.mark.parametrize("level", LEVELS)
def test_allowed_by_its_name(level: str) -> None:
    allowance = nanscan.allow("lib::*")
    net = Block(nanscan.extension(spoil, "lib::f"))
    try:
        with nanscan.enable(net, level=level, on_anomaly="record") as scanner:
            net(torch.ones(2, 4))
    finally:
        allowance.remove()
    assert errors(scanner) == []
    assert allowance.count >= 1


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_passes_and_the_next_call_is_seen(level: str) -> None:
    failing, writing = nanscan.extension(raising), nanscan.extension(spoil)

    def call(y: torch.Tensor) -> None:
        with pytest.raises(KeyError, match="from the extension"):
            failing(y)
        writing(y)

    assert errors(watch(call, level))[0][:2] == ("origin", "spoil")


@native
def test_ops_inside_are_part_of_the_call_and_nodes_get_its_line() -> None:
    def call(y: torch.Tensor) -> torch.Tensor:
        return inner(torch.sqrt(y.abs() * 0.0))  # finite; its gradient is not

    inner = nanscan.extension(torch.log1p, "lib::log1p")
    scanner = watch(nanscan.extension(call, "lib::call"), "op")
    assert scanner.first.phase == "backward"
    assert scanner.first.op == "SqrtBackward0"
    assert scanner.first.source.endswith("result = self.call(y)  # the call")


@native
def test_inside_a_python_backward_the_node_is_named_and_the_line_is_the_calls() -> None:
    write = nanscan.extension(spoil, "lib::write")

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            grad = grad * 1.0
            write(grad)  # the line of the fault
            return grad

    first = watch(Spoil.apply, "op").first
    assert (first.op, first.phase) == ("SpoilBackward", "backward")
    assert "# the line of the fault" in first.source


@pytest.mark.parametrize("level", LEVELS)
def test_threads_have_their_own_calls(level: str) -> None:
    meet = threading.Barrier(2)

    def together(y: torch.Tensor) -> None:
        meet.wait(timeout=20)
        spoil(y)
        meet.wait(timeout=20)

    net = Block(nanscan.extension(together, "lib::together"))
    with nanscan.enable(net, level=level, on_anomaly="record") as scanner:
        threads = [threading.Thread(target=net, args=(torch.ones(2, 4),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {error[:2] for error in errors(scanner)} == {("origin", "lib::together")}


def test_two_scanners_see_one_call() -> None:
    call = nanscan.extension(spoil, "lib::f")
    nets = [Block(call), nn.Linear(4, 4)]
    scanners = [nanscan.enable(net, level="module", on_anomaly="record") for net in nets]
    nets[0](torch.ones(2, 4))
    assert errors(scanners[0]) == [("origin", "lib::f", "", "forward")]
    assert errors(scanners[1]) == [("origin", "lib::f", None, "forward")]


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_kept(level: str) -> None:
    call = nanscan.extension(lambda y: y.detach() + 1, "lib::f")
    net = Block(call)
    with nanscan.enable(net, level=level):
        y = torch.ones(2, 4)
        reference = weakref.ref(y)
        net(y)
        result = call(y)
        kept = weakref.ref(result)
        del y, result
        gc.collect()
        assert reference() is None
        assert kept() is None
