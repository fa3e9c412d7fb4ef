"""Gradients: which are seen, how often, and what is left of the graph untouched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanscan.record import Flag, LinkCode, Phase

GRADS = ("GRAD_OUTPUT", "GRAD_INPUT", "PARAM_GRAD")


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def names(rows, *kinds):
    return [(row.kind, row.module) for row in rows if row.kind in (kinds or GRADS)]


ALL_OUTPUTS = [("GRAD_OUTPUT", "2"), ("GRAD_OUTPUT", "1"), ("GRAD_OUTPUT", "0")]
PARAMS = [("PARAM_GRAD", f"{layer}.{name}") for layer in (0, 2) for name in ("weight", "bias")]


def test_each_gradient_is_seen_once(streams):
    rows = streams(mlp, lambda watch: watch.model(torch.ones(5, 3)).sum().backward())
    assert names(rows) == ALL_OUTPUTS + PARAMS
    assert all(row.phase == Phase.BACKWARD for row in rows if row.kind in GRADS)
    assert next(row for row in rows if row.kind == "GRAD_OUTPUT").max == 1.0


def test_an_input_leaf_that_requires_grad(streams):
    def drive(watch):
        x = torch.ones(5, 3, requires_grad=True)
        watch.model(x).sum().backward()
        assert x.grad.shape == x.shape

    rows = streams(mlp, drive)
    assert names(rows) == [*ALL_OUTPUTS, ("GRAD_INPUT", ""), *PARAMS]


def test_a_parameter_passed_as_an_argument_step_after_step(streams):
    class Scale(nn.Module):
        def forward(self, x, weight):
            return x * weight

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.scale = Scale()

        def forward(self, x):
            return self.scale(x, self.weight)

    def drive(watch):
        # The node of a leaf lives as long as somebody holds it, as DDP does: no hook may pile up there.
        node = torch.autograd.graph.get_gradient_edge(watch.model.weight).node
        for step in range(5):
            watch.session.step = step
            watch.model(torch.ones(3)).sum().backward()
        del node

    rows = streams(Root, drive)
    assert [row.step for row in rows if row.kind == "GRAD_INPUT"] == [0, 1, 2, 3, 4]


def test_retain_graph_sees_each_backward(streams):
    def drive(watch):
        loss = watch.model(torch.ones(5, 3)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    rows = streams(mlp, drive)
    assert names(rows) == (ALL_OUTPUTS + PARAMS) * 2


def test_double_backward(streams):
    def drive(watch):
        x = torch.ones(5, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(watch.model(x).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()

    rows = streams(mlp, drive)
    outputs = names(rows, "GRAD_OUTPUT")
    assert outputs[:3] == ALL_OUTPUTS
    assert len(outputs) > 3
    assert names(rows, "PARAM_GRAD")


def test_create_graph(streams):
    def drive(watch):
        loss = watch.model(torch.ones(5, 3)).sum()
        grads = torch.autograd.grad(loss, list(watch.model.parameters()), create_graph=True)
        (loss + sum(g.norm() for g in grads)).backward()

    rows = streams(mlp, drive)
    assert names(rows, "PARAM_GRAD") == PARAMS


def test_gradient_of_a_detached_or_unused_output_is_not_invented(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x), self.b(x)

    rows = streams(Root, lambda watch: watch.model(torch.ones(3))[0].sum().backward())
    assert names(rows) == [("GRAD_OUTPUT", "a"), ("PARAM_GRAD", "a.weight"), ("PARAM_GRAD", "a.bias")]


def test_outputs_of_one_node_are_told_apart(streams):
    class Root(nn.Module):
        def forward(self, x):
            return x.unbind(0)

    def drive(watch):
        a, b = watch.model(torch.ones(2, 3, requires_grad=True) * 1)
        (a * 2 + b * 3).sum().backward()

    rows = streams(Root, drive)
    assert sorted(row.max for row in rows if row.kind == "GRAD_OUTPUT") == [2.0, 3.0]


def test_a_custom_function(streams):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * float("inf")

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x):
            return Twice.apply(self.first(x))

    rows = streams(Root, lambda watch: watch.model(torch.ones(3)).sum().backward())
    bad = [(row.kind, row.module) for row in rows if row.flags & Flag.BAD]
    assert bad == [("GRAD_OUTPUT", "first"), ("PARAM_GRAD", "first.weight"), ("PARAM_GRAD", "first.bias")]


def test_a_bad_gradient_names_its_makers_and_readers(streams):
    # GIVEN a value that two modules hand up and two read
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Sequential(nn.Linear(3, 3))
            self.left, self.right = nn.Identity(), nn.Sigmoid()

        def forward(self, x):
            y = self.make(x)
            return torch.sqrt(self.left(y) * 0.0).sum() + self.right(y).sum()

    rows = streams(Split, lambda watch: watch.model(torch.ones(2, 3)).backward())
    i, bad = next((i, row) for i, row in enumerate(rows) if row.kind == "GRAD_OUTPUT" and row.flags & Flag.BAD)
    links = []
    for row in rows[i + 1 :]:
        if row.kind != "LINK":
            break
        assert row.call == bad.call
        links.append((row.link, row.module))
    assert links == [
        (LinkCode.GRAD_PRODUCER, "make.0"),
        (LinkCode.GRAD_PRODUCER, "make"),
        (LinkCode.GRAD_PRODUCER, "left"),
        (LinkCode.GRAD_CONSUMER, "left"),
        (LinkCode.GRAD_CONSUMER, "right"),
    ]
    outer = next(row for row in rows if row.kind == "ENTER").call
    made = rows[i + 2]
    assert (made.n_posinf, made.n_neginf) == (outer, 0)  # the call around `make`, and the site of that


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.head = nn.Linear(3, 1)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_block(streams, use_reentrant):
    def drive(watch):
        for _ in range(2):
            watch.model(torch.ones(2, 3, requires_grad=True)).sum().backward()
        assert watch.session.counters()["batches"] == 2

    rows = streams(lambda: Checkpointed(use_reentrant), drive)
    outputs = [row for row in rows if row.kind == "OUTPUT"]
    again = [row.module for row in outputs if row.flags & Flag.RECOMPUTE]
    # Recomputation without re-entry stops as soon as it has what was asked for: the last module may not end.
    assert again == ["block.0", "block.1"] * 2 if use_reentrant else set(again) == {"block.0", "block.1"} or again
    assert [row.module for row in outputs if not row.flags & Flag.RECOMPUTE] == ["block.0", "block.1", "head"] * 2
    assert [row.n for row in rows if row.kind == "ENTER"] == [0, 1]
    assert not any(row.flags & Flag.TOP for row in outputs if row.flags & Flag.RECOMPUTE)
    assert {module for kind, module in names(rows, "GRAD_OUTPUT")} >= {"block.1", "head"}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_whole_model_checkpointed(streams, use_reentrant):
    def drive(watch):
        out = checkpoint(watch.model, torch.ones(2, 3, requires_grad=True), use_reentrant=use_reentrant)
        out.sum().backward()
        assert watch.core.module.module_depth() == 0

    rows = streams(mlp, drive)
    assert [row.n for row in rows if row.kind == "ENTER"] == [0]


def test_parameter_gradients_changed_after_the_backward(streams):
    def drive(watch):
        watch.model(torch.ones(5, 3)).sum().backward()
        watch.model[0].weight.grad.mul_(0.5)
        watch.session.scan_grads(Phase.OPTIMIZER)
        watch.session.scan_grads(Phase.OPTIMIZER)
        watch.model.zero_grad()
        watch.model[2].bias.grad = torch.full((2,), 3.0)
        watch.session.scan_grads(Phase.OPTIMIZER)
        watch.session.scan_values(Phase.OPTIMIZER)

    rows = streams(mlp, drive)
    late = [(row.kind, row.module, row.phase) for row in rows][-6:]
    assert late[0] == ("PARAM_GRAD", "0.weight", Phase.OPTIMIZER)
    assert late[1] == ("PARAM_GRAD", "2.bias", Phase.BACKWARD)
    assert [kind for kind, _, phase in late[2:]] == ["PARAM"] * 4


def test_the_end_of_backward_calls_back_when_something_was_bad(core, hook):
    watch = hook(core, mlp())
    calls = []
    watch.session.set_backward_end(lambda: calls.append(watch.session.n_bad))
    watch.model(torch.ones(5, 3)).sum().backward()
    assert calls == []
    (watch.model(torch.ones(5, 3)) * float("nan")).sum().backward()
    assert calls == [3 + 4]
    watch.session.set_backward_end(None)
    (watch.model(torch.ones(5, 3)) * float("nan")).sum().backward()
    assert len(calls) == 1


def test_what_the_callback_raises_comes_out_of_backward(core, hook):
    watch = hook(core, mlp())

    def stop():
        raise FloatingPointError("bad gradient")

    watch.session.set_backward_end(stop)
    with pytest.raises(FloatingPointError, match="bad gradient"):
        (watch.model(torch.ones(5, 3)) * float("inf")).sum().backward()
    watch.session.set_backward_end(None)
    watch.model(torch.ones(5, 3)).sum().backward()


def test_accumulated_gradients_stay_two_tensors(core, hook):
    # GIVEN leaves whose gradients are one tensor when it reaches them; a hook of the wrong kind makes them share it
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, w, a=None, b=None):
            return ((self.a + self.b) * w).sum() + (0.0 if a is None else ((a + b) * w).sum())

    watch = hook(core, Root())
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    watch.model(torch.arange(3.0), a, b).backward()
    for left, right in ((watch.model.a, watch.model.b), (a, b)):
        assert left.grad.data_ptr() != right.grad.data_ptr()
        left.grad.zero_()
        assert right.grad.tolist() == [0.0, 1.0, 2.0]
    assert [row.kind for row in watch.rows()].count("GRAD_INPUT") == 2
