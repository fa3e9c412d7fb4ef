"""What is written about a call that went bad: its inputs, its own tensors, who called."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanscan.record import DType, Flag, LinkCode


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)


def poison(tensor, index=1):
    """A write that torch knows nothing of, as a pybind or ctypes kernel makes it."""
    address = tensor.data_ptr() + index * tensor.element_size()
    ctypes.c_float.from_address(address).value = math.nan


def about(rows, module):
    """Kinds and flags of what was written from `module`'s first bad output on, up to its PARENT link."""
    first = next(i for i, row in enumerate(rows) if row.kind == "OUTPUT" and row.module == module and row.flags & 1)
    call = rows[first].call
    return [row for row in rows[first:] if row.call == call]


def test_a_clean_input_a_bad_output(streams):
    rows = about(streams(lambda: nn.Sequential(nn.Identity(), Log()), lambda watch: watch.model(-torch.ones(4))), "1")
    assert [row.kind for row in rows] == ["OUTPUT", "INPUT", "LINK", "LINK"]
    assert rows[1].flags == Flag.INPUT | Flag.KNOWN
    assert (rows[1].n, rows[1].n_nan, rows[1].max) == (4, 0, -1.0)
    assert (rows[2].link, rows[2].module) == (LinkCode.PRODUCER_OF_INPUT, "")
    assert (rows[3].link, rows[3].module) == (LinkCode.PARENT, "")


def test_an_input_nobody_has_seen(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = Log()

        def forward(self, x):
            return self.log(x * float("nan"))

    rows = about(streams(Root, lambda watch: watch.model(torch.ones(4))), "log")
    assert rows[1].flags == Flag.INPUT | Flag.BAD
    assert [row.link for row in rows[2:]] == [LinkCode.PARENT]


def test_memory_changed_behind_the_dispatcher(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.read = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            y = self.make(x)
            z = y * 1.0
            poison(y)
            return self.read(y) + z.sum()

    rows = streams(Root, lambda watch: watch.model(torch.ones(1, 3)))
    _, read, *_, producer, parent = about(rows, "read")
    assert read.flags == Flag.INPUT | Flag.BAD | Flag.KNOWN | Flag.CHANGED
    assert read.first_bad == 1
    made = next(row for row in rows if row.kind == "OUTPUT" and row.module == "make")
    assert not made.flags & Flag.BAD
    assert (producer.link, producer.module, producer.n_nan) == (LinkCode.PRODUCER_OF_INPUT, "make", made.call)
    assert parent.link is LinkCode.PARENT


def test_root_input_changed_behind_the_dispatcher(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(3, 2)

        def forward(self, x):
            poison(x)
            return self.read(x)

    rows = about(streams(Root, lambda watch: watch.model(torch.ones(1, 3))), "read")
    assert rows[1].flags & Flag.CHANGED


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_an_observed_write_is_not_called_a_change_behind_the_dispatcher(streams, mode):
    # GIVEN a root that overwrites its input before a child reads it; inference tensors have no version to tell
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(3, 2)

        def forward(self, x):
            x.log_()
            return self.read(x)

    def drive(watch):
        with mode():
            watch.model(-torch.ones(1, 3))

    rows = about(streams(Root, drive), "read")
    assert not rows[1].flags & Flag.CHANGED


def test_a_buffer_refilled_behind_the_dispatcher_between_steps(streams):
    # GIVEN one tensor over memory that a loader fills again and again
    def drive(watch):
        x = torch.ones(1, 3)
        watch.model(x)
        poison(x)
        watch.session.step = 1
        watch.model(x)

    rows = streams(lambda: nn.Sequential(nn.Linear(3, 3)), drive)
    root = [row for row in rows if row.kind == "ENTER"][1]
    data = next(row for row in rows if row.kind == "INPUT" and row.call == root.call)
    assert data.flags == Flag.INPUT | Flag.BAD
    # THEN it was bad before the forward began: the first reader does not take it for changed since
    _, read, link, _ = about(rows, "0")
    assert read.flags == Flag.INPUT | Flag.BAD | Flag.KNOWN
    assert link.n_nan == root.call


def test_in_place_without_versions(streams):
    # GIVEN inference tensors and a module that says that it writes its input
    class InPlaceLog(nn.Module):
        inplace = True

        def forward(self, x):
            return x.log_()

    def drive(watch):
        with torch.inference_mode():
            watch.model(-torch.ones(4))

    rows = about(streams(lambda: nn.Sequential(nn.Identity(), InPlaceLog()), drive), "1")
    assert not rows[1].flags & (Flag.BAD | Flag.CHANGED)


def test_a_bad_root_input(streams):
    rows = streams(lambda: nn.Sequential(nn.Linear(3, 3)), lambda watch: watch.model(torch.full((2, 3), math.inf)))
    data = next(row for row in rows if row.kind == "INPUT")
    assert (data.flags, data.n_posinf, data.phase) == (Flag.INPUT | Flag.BAD, 6, 1)
    _, read, link, _ = about(rows, "0")
    assert read.flags == Flag.INPUT | Flag.BAD | Flag.KNOWN
    assert (link.link, link.module) == (LinkCode.PRODUCER_OF_INPUT, "")


def test_a_bad_parameter_and_a_bad_buffer(streams):
    def build():
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        with torch.no_grad():
            model[0].weight[1, 2] = math.inf
            model[1].running_var[0] = math.nan
        return model.eval()

    rows = streams(build, lambda watch: watch.model(torch.ones(2, 3)))
    first = [row for row in about(rows, "0") if row.flags & Flag.PARAM]
    assert [(row.kind, row.module, row.first_bad) for row in first] == [("PARAM", "0.weight", 5)]
    second = [row for row in about(rows, "1") if row.flags & Flag.PARAM]
    assert [(row.kind, row.module) for row in second] == [("BUFFER", "1.running_var")]


def test_an_input_overwritten_by_the_module(streams):
    class InPlaceLog(nn.Module):
        inplace = True

        def forward(self, x):
            return x.log_()

    rows = about(streams(lambda: nn.Sequential(nn.Identity(), InPlaceLog()), lambda w: w.model(-torch.ones(4))), "1")
    read = rows[1]
    # What it read is gone: the counts taken before stand for it.
    assert read.flags == Flag.INPUT | Flag.KNOWN
    assert (read.n, read.n_nan, read.min, read.max, read.first_bad) == (4, 0, math.inf, -math.inf, -1)
    assert read.device == -1


def test_an_overwritten_input_that_was_bad_before(streams):
    class InPlaceAdd(nn.Module):
        inplace = True

        def forward(self, x):
            return x.add_(1)

    def drive(watch):
        watch.model(torch.tensor([1.0, math.nan, -math.inf]))

    rows = about(streams(lambda: nn.Sequential(nn.Identity(), InPlaceAdd()), drive), "1")
    assert rows[1].flags == Flag.INPUT | Flag.KNOWN | Flag.BAD
    assert (rows[1].n_nan, rows[1].n_neginf) == (1, 1)
    assert DType(rows[1].dtype) is DType.F32


def test_more_inputs_than_are_remembered(streams):
    class Root(nn.Module):
        def forward(self, *xs):
            return torch.log(-sum(xs))

    rows = about(streams(Root, lambda watch: watch.model(*(torch.ones(2) for _ in range(15)))), "")
    read = [row for row in rows if row.flags & Flag.INPUT and row.kind == "INPUT"]
    assert [row.output_index for row in read][-15:] == list(range(15))


def test_the_same_tensor_twice(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.sub = Sub()

        def forward(self, x):
            return self.sub(x, other=x)

    class Sub(nn.Module):
        def forward(self, x, other):
            return (x - other) / (x - x)

    rows = about(streams(Root, lambda watch: watch.model(torch.ones(3))), "sub")
    assert [row.output_index for row in rows if row.kind == "INPUT"] == [0, 1]
    assert sum(row.kind == "LINK" and row.link is LinkCode.PRODUCER_OF_INPUT for row in rows) == 2


def test_recomputed_bad_values(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), Log())

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=True)

    rows = streams(Root, lambda watch: watch.model(torch.ones(2, 3, requires_grad=True)).sum().backward())
    again = [row for row in rows if row.kind == "OUTPUT" and row.flags & Flag.RECOMPUTE]
    assert [(row.module, bool(row.flags & Flag.BAD)) for row in again] == [
        ("block.0", False),
        ("block.1", True),
        ("block", True),
    ]
    assert any(row.kind == "LINK" and row.call == again[1].call for row in rows)
