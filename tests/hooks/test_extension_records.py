"""Records of wrapped calls at module level: the same from the compiled core and from its plain twin."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import nanscan
from nanscan.hooks import extension
from nanscan.record import Flag, LinkCode
from nanscan.sites import NO_SITE

NAN = float("nan")
LIBC = ctypes.CDLL(None)


def spoil(y: torch.Tensor) -> None:
    y.detach().numpy()[0, 1] = NAN


def scaled(y: torch.Tensor) -> torch.Tensor:
    return y.detach() * NAN


class Block(nn.Module):
    """Linear, the call, linear. `call` returns what goes on, or None: it wrote into its argument."""

    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.call = nn.Linear(4, 4), nn.Linear(4, 1), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        result = self.call(y)  # the call
        return self.b(y if result is None else y + result)


def through(call: Callable[[Any], Any], steps: int = 1) -> Callable[[Any], None]:
    """Runs the model under a watcher that hands the calls to its session; `call` is wrapped here."""

    def drive(watch: Any) -> None:
        def tap(name: str) -> Any:
            site = watch.session.current_site()
            module = None if site == NO_SITE else watch.sites[site].module
            return watch.session.tap(watch.sites.add_extension(name, module), extension=name)

        watcher = SimpleNamespace(extension_tap=tap, tensor_at=watch.session.tensor_at, attend=watch.attended.append)
        extension.add(watcher)
        watch.model.call = nanscan.extension(call, "lib::f")
        try:
            for _ in range(steps):
                watch.model(torch.ones(2, 4))
        finally:
            extension.remove(watcher)

    return drive


@pytest.mark.parametrize("function", [spoil, scaled], ids=["written-in-place", "returned"])
def test_records_of_a_bad_call(streams: Any, function: Any) -> None:
    rows = streams(lambda: Block(None), through(function, steps=2))
    output = next(row for row in rows if row.kind == "OUTPUT" and row.flags & Flag.BAD)
    about = [row for row in rows if row.call == output.call]
    given = next(row for row in about if row.kind == "INPUT")
    assert given.flags == Flag.INPUT | Flag.KNOWN, "clean before the call, and handed over by the module before it"
    assert [row.link for row in about if row.kind == "LINK"] == [LinkCode.PRODUCER_OF_INPUT, LinkCode.PARENT]


def test_records_of_a_healthy_call(streams: Any) -> None:
    def double(y: torch.Tensor) -> None:
        y.detach().numpy()[:] *= 2

    rows = streams(lambda: Block(None), through(double, steps=2))
    made = [row for row in rows if row.kind == "OUTPUT" and not row.flags & Flag.BAD]
    assert [row.module for row in made] == 2 * ["a", "", "b"], "the second is the argument, as the call left it"
    assert not any(row.flags & Flag.LINK for row in rows)


def test_records_of_more_inputs_than_a_module_is_remembered_with(streams: Any) -> None:
    class Many(nn.Module):
        call: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            many = [torch.ones(2, 2) for _ in range(20)]
            self.call(many)
            return x + many[-1].sum()

    rows = streams(Many, through(lambda many: spoil(many[-1])))
    written = next(row for row in rows if row.kind == "OUTPUT" and row.flags & Flag.BAD)
    assert sum(row.kind == "INPUT" and row.call == written.call for row in rows) == 20


def test_records_of_memory_that_had_changed_before(streams: Any) -> None:
    # GIVEN a write that nobody wrapped before the wrapped call, which hands its argument on
    class Before(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            z = y * 1.0
            spoil(y)
            return self.b(self.call(y)) + z.sum()

    rows = streams(lambda: Before(None), through(lambda y: y * 1.0))
    given = next(row for row in rows if row.kind == "INPUT" and row.flags & Flag.BAD)
    assert given.flags == Flag.INPUT | Flag.BAD | Flag.KNOWN | Flag.CHANGED


def test_records_of_an_argument_handed_through(streams: Any) -> None:
    rows = streams(lambda: Block(None), through(lambda y: y))
    assert [row.module for row in rows if row.kind == "OUTPUT"] == ["a", "b"], "seen as a's, and once"


def test_records_by_address(streams: Any) -> None:
    wrapped = LIBC.memset

    class Raw(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            self.call(y.data_ptr(), 255, 4)
            return self.b(y)

    rows = streams(lambda: Raw(None), through(lambda *args: wrapped(ctypes.c_void_p(args[0]), *args[1:]) and None))
    assert next(row for row in rows if row.flags & Flag.BAD).n_nan == 1
