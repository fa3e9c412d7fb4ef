"""torch.compile(fullgraph=True): still one graph, the right origin, steps counted, the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import nanscan


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    nanscan.disable()
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()

    def forward(self, x):
        return x + self.act(self.fc(self.norm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blocks, self.out = nn.Linear(4, 8), nn.ModuleList([Block(), Block()]), nn.Linear(8, 2)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def compiled(model, backend):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter, fullgraph=True), counter


def train(call, parameters, steps):
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    x = torch.randn(steps, 3, 4, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in x:
        optimizer.zero_grad()
        loss = call(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_the_same_numbers_and_every_step(backend):
    model = Model()
    free = copy.deepcopy(model)
    losses = train(compiled(free, backend)[0], free.parameters(), 5)
    call, counter = compiled(model, backend)
    scanner = nanscan.enable(call, on_anomaly="raise")
    watched = train(call, model.parameters(), 5)
    assert counter.frame_count == 1
    assert watched == losses
    for (name, ours), theirs in zip(model.named_parameters(), free.parameters(), strict=True):
        assert torch.equal(ours, theirs), f"{name} differs"
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (5, 5)
    assert scanner.stats["scans"] > 5 * 12
    assert scanner.first is None


@pytest.mark.parametrize("enable_with", ["the compiled model", "the model inside"])
def test_the_origin_is_the_right_module(enable_with):
    model = Model()
    call, counter = compiled(model, "aot_eager")
    scanner = nanscan.enable(call if enable_with == "the compiled model" else model, on_anomaly="record")
    train(call, model.parameters(), 2)
    with torch.no_grad():
        model.blocks[1].fc.weight[3, 2] = float("inf")
    train(call, model.parameters(), 1)
    assert counter.frame_count == 1
    first = scanner.first
    assert (first.role, first.tensor, first.step) == ("external", "blocks.1.fc.weight", 2)
    assert first.reader == "blocks.1.fc"


def test_a_module_that_makes_nan_is_the_origin():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(nn.Identity(), Root(), nn.Softmax(-1))
    call, counter = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="record")
    with torch.no_grad():
        call(torch.ones(2, 4))
        call(-torch.ones(2, 4))
    scanner.flush()
    assert counter.frame_count == 1
    assert (scanner.first.module, scanner.first.role, scanner.first.step) == ("1", "origin", 1)
    assert scanner.first.chain[0].startswith("1")


def test_bad_data_of_a_compiled_model():
    model = Model()
    call, _ = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="record")
    with torch.no_grad():
        call(torch.ones(2, 4))
        call(torch.full((2, 4), float("nan")))
    scanner.flush()
    assert (scanner.first.role, scanner.first.phase, scanner.first.batch) == ("external", "data", 1)


def test_raise_comes_out_of_the_compiled_model():
    model = Model()
    call, _ = compiled(model, "aot_eager")
    nanscan.enable(call, on_anomaly="raise")
    with torch.no_grad():
        call(torch.ones(2, 4))
        model.out.bias.fill_(float("nan"))
        with pytest.raises(nanscan.NonFiniteError, match=r"out\.bias"):
            call(torch.ones(2, 4))


def test_a_bad_gradient_keeps_its_phase():
    # GIVEN gradients that are zeroed, not dropped, so that each backward writes the same tensors again
    model = Model()
    call, _ = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="record")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        out = call(torch.ones(2, 4))
        (out * (float("inf") if step == 2 else 1.0)).sum().backward()
        optimizer.step()
    scanner.close()
    assert scanner.first.step == 2
    assert scanner.first.phase == "backward", scanner.first.evidence


def test_a_bad_gradient_without_an_optimizer():
    # GIVEN a compiled model in a program that updates by hand: nobody calls an optimizer's hook
    model = Model()
    call, _ = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="record")
    for step in range(4):
        (call(torch.ones(2, 4)) * (float("inf") if step == 1 else 1.0)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 1e-3 * p.grad.nan_to_num(0, 0, 0)
                p.grad = None
    scanner.close()
    assert scanner.first is not None
    assert scanner.first.phase == "backward"


def test_a_model_called_inside_a_compiled_function():
    model = Model()
    scanner = nanscan.enable(model, on_anomaly="record")
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True)
    def loss_of(x):
        return model(x * 2).square().mean()

    train(lambda x: loss_of(x), model.parameters(), 3)
    assert counter.frame_count == 1
    with torch.no_grad():
        model.inp.bias.fill_(float("inf"))
    train(lambda x: loss_of(x), model.parameters(), 1)
    assert scanner.first.tensor == "inp.bias"
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (4, 4)


def test_check_inside_a_compiled_function():
    scanner = nanscan.enable(nn.Linear(2, 2), on_anomaly="record")
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True)
    def function(x):
        return nanscan.check(x.log(), "log of x").sum()

    function(torch.ones(3))
    assert scanner.first is None
    function(-torch.ones(3))
    assert counter.frame_count == 1
    assert scanner.first.tensor == "log of x"


def test_check_inside_a_compiled_function_without_a_scanner():
    function = torch.compile(lambda x: nanscan.check(x.log(), "log").sum(), backend="aot_eager", fullgraph=True)
    assert torch.isnan(function(-torch.ones(3)))


def test_after_close_nothing_is_observed(hooks_of):
    model = Model()
    call, _ = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="raise")
    call(torch.ones(2, 4)).sum().backward()
    scanner.close()
    assert hooks_of(model) == []
    records = scanner.stats["records"]
    call(torch.full((2, 4), float("nan"))).sum().backward()
    assert scanner.stats["records"] == records
    with nanscan.enable(call, on_anomaly="record") as again:
        call(torch.ones(2, 4))
    assert again.stats["batches"] in (0, 1)


def test_enable_after_the_first_compiled_call_says_so():
    model = Model()
    call, _ = compiled(model, "aot_eager")
    call(torch.ones(2, 4))
    with pytest.warns(nanscan.NanscanWarning, match="torch._dynamo.reset") as caught:
        scanner = nanscan.enable(call, on_anomaly="record")
    assert "before the first call" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert scanner.coverage["notes"] == [str(caught[0].message)]
    torch._dynamo.reset()
    with torch.no_grad():
        call(torch.full((2, 4), float("nan")))
    assert scanner.first.role == "external"


def test_enable_before_the_first_call_is_silent_whatever_else_was_compiled():
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    model = Model()
    call, _ = compiled(model, "aot_eager")
    nanscan.enable(call)  # a notice would be an error here
    call(torch.ones(2, 4))


def test_every_with_a_compiled_model():
    model = Model()
    call, counter = compiled(model, "aot_eager")
    scanner = nanscan.enable(call, on_anomaly="record", every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scans = []
    for _ in range(4):
        before = scanner.stats["scans"]
        call(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scans.append(scanner.stats["scans"] > before)
    assert scans == [True, False, True, False]
    assert counter.frame_count == 1


def test_enable_none_with_a_compiled_model():
    model = Model()
    call, counter = compiled(model, "aot_eager")
    scanner = nanscan.enable(on_anomaly="record")
    train(call, model.parameters(), 3)
    with torch.no_grad():
        model.out.bias.fill_(float("nan"))
    train(call, model.parameters(), 1)
    assert counter.frame_count == 1
    assert scanner.first is not None
    assert "out.bias" in scanner.first.tensor
