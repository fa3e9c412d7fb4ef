"""Which tensors of a call are seen, and once each."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from nanscan.record import Flag, Phase

Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    first: Any
    number: int
    second: Any
    kind: type = int  # a class inside is not walked


class Ordered(OrderedDict):
    """Answers with strings: only dict's own values count."""

    def values(self):
        return ["not", "tensors"]


class Returns(nn.Module):
    """Makes two tensors of its input and returns them in `shape`."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return self.shape(x + 1, x * 2)


def endless(a, b):
    out = [a, b]
    out.append(out)
    return out


SHAPES = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, 3: b},
    "namedtuple": Pair,
    "dataclass": lambda a, b: Result(a, 3, b),
    "ordered dict subclass": lambda a, b: Ordered(x=a, y=b),
    "nested": lambda a, b: ([{"k": (a,)}], None, "text", 1.5, Result(None, 0, {"z": b})),
    "a dataclass type": lambda a, b: (Result, a, b),
}


def outputs(rows):
    return [row for row in rows if row.kind == "OUTPUT"]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_tensor_of_a_nested_output_is_seen_in_order(streams, shape):
    rows = outputs(streams(lambda: Returns(shape), lambda watch: watch.model(torch.ones(2, 3))))
    assert [(row.output_index, row.max, row.n) for row in rows] == [(0, 2.0, 6), (1, 2.0, 6)]
    assert all(row.flags == Flag.TOP for row in rows)


def test_a_list_that_contains_itself_ends(streams):
    rows = outputs(streams(lambda: Returns(endless), lambda watch: watch.model(torch.ones(2))))
    assert [row.output_index for row in rows] == [0, 1]


def test_a_value_handed_up_is_scanned_once(streams):
    # GIVEN a Sequential in a Sequential: three modules return the same tensor
    def build():
        return nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3)))

    rows = streams(build, lambda watch: watch.model(torch.ones(2, 3)))
    assert [row.module for row in outputs(rows)] == ["0.0", "1.0"]


def test_a_bad_value_handed_up_is_recorded_by_everyone_who_hands_it_up(streams):
    class Log(nn.Module):
        def forward(self, x):
            return torch.log(x)

    rows = streams(lambda: nn.Sequential(nn.Sequential(Log())), lambda watch: watch.model(-torch.ones(2)))
    tops = [(row.module, bool(row.flags & Flag.TOP)) for row in outputs(rows)]
    assert tops == [("0.0", False), ("0", False), ("", True)]
    assert all(row.flags & Flag.BAD and row.n_nan == 2 and row.first_bad == 0 for row in outputs(rows))


@pytest.mark.parametrize("grad", [True, False])
def test_in_place_relu_is_a_value_of_its_own(streams, grad):
    def drive(watch):
        with torch.set_grad_enabled(grad):
            out = watch.model(torch.randn(4, 3))
        if grad:
            out.sum().backward()

    rows = streams(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), drive)
    assert [row.module for row in outputs(rows)] == ["0", "1", "2"]
    assert outputs(rows)[1].min >= 0
    assert [row.module for row in rows if row.kind == "GRAD_OUTPUT"] == (["2", "1", "0"] if grad else [])


def test_an_in_place_module_has_an_unseen_input_scanned_first(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.act(x * -2)

    rows = streams(Root, lambda watch: watch.model(torch.ones(3)))
    assert [(row.kind, row.module, row.min) for row in rows if row.kind in ("INPUT", "OUTPUT")] == [
        ("INPUT", "", 1.0),
        ("INPUT", "act", -2.0),
        ("OUTPUT", "act", 0.0),
    ]


def test_inputs_come_as_keywords_too(streams):
    class Root(nn.Module):
        def forward(self, x, *, mask=None, extra=None):
            return x + mask + extra["t"]

    def drive(watch):
        watch.model(torch.ones(2), mask=torch.zeros(2), extra={"t": torch.full((2,), 5.0)})

    rows = streams(Root, drive)
    data = [row for row in rows if row.kind == "INPUT"]
    assert [(row.output_index, row.max, row.phase) for row in data] == [(0, 1.0, Phase.DATA), (1, 0.0, 1), (2, 5.0, 1)]


def test_tensors_that_hold_no_floats_are_counted_by_reason(streams):
    class Root(nn.Module):
        def forward(self, x):
            return x.argmax(), x > 0, x.to_sparse(), x

    counted = []

    def drive(watch):
        watch.model(torch.ones(3))
        counted.append(watch.session.counters()["unscanned"])

    rows = streams(Root, drive)
    assert outputs(rows) == []  # x itself is the root's input, seen
    assert all(sorted(n.values()) == [1, 2] for n in counted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_element_types(streams, dtype):
    class Root(nn.Module):
        def forward(self, x):
            return x.to(dtype)

    rows = outputs(streams(Root, lambda watch: watch.model(torch.tensor([1.0, -2.0, float("inf"), float("nan")]))))
    assert (rows[0].n, rows[0].n_nan, rows[0].n_posinf, rows[0].first_bad) == (4, 1, 1, 2)


def test_strided_and_empty_outputs(streams):
    class Root(nn.Module):
        def forward(self, x):
            return x.t(), x[::2, 1:], x.expand(2, 4, 6), x[:0], x.sum()

    rows = outputs(streams(Root, lambda watch: watch.model(torch.randn(4, 6))))
    assert [row.n for row in rows] == [24, 10, 48, 0, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_root_without_gradients(streams, mode):
    def drive(watch):
        with mode():
            watch.model(torch.ones(2, 3))
            watch.model(torch.ones(2, 3))

    def build():
        return nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))

    rows = streams(build, drive)
    assert [row.n for row in rows if row.kind == "ENTER"] == [0, 1]
    # Inference tensors have no version: what the root hands up may have been written since, and is scanned again.
    expected = ["0", "1", "2"] if mode is torch.no_grad else ["0", "1", "2", ""]
    assert [row.module for row in outputs(rows)] == expected * 2


def test_a_module_that_returns_its_input_or_a_parameter(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Identity()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.same(x), self.weight

    def drive(watch):
        x, weight = watch.model(torch.ones(3))
        (x * weight).sum().backward()

    rows = streams(Root, drive)
    assert [(row.module, row.output_index) for row in outputs(rows)] == [("", 1)]


def test_views_of_an_output_and_writes_to_it_after_the_hook(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            y = self.a(x)
            y.add_(1)
            y[0] = 2.0  # through a view
            z = self.b(y)
            return self.c(z[1:].mul_(2)) + z.sum()

    rows = streams(Root, lambda watch: watch.model(torch.ones(2, 3)).sum().backward())
    assert [row.module for row in outputs(rows)] == ["a", "b", "c", ""]
    assert {row.module for row in rows if row.kind.startswith("GRAD")} >= {"a", "b", "c", ""}


def test_statistics_agree_on_larger_tensors(streams):
    class Root(nn.Module):
        def forward(self, x):
            return x * 3 + 1e4, x.half(), x.double().exp()

    rows = outputs(streams(Root, lambda watch: watch.model(torch.randn(300, 1000))))
    assert [row.n for row in rows] == [300_000] * 3
    assert rows[0].mean == pytest.approx(1e4, rel=1e-4)
