"""What is said of an anomaly inside a compiled graph: as in eager mode, wherever the graph lets us look."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan

NAN, INF = float("nan"), float("inf")


def test_a_bad_parameter_is_told_from_a_module_that_makes_nan(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="record")
    watched.train(2)
    with torch.no_grad():
        watched.model.b1.fc.weight[3, 2] = INF
    watched.train(1)
    assert watched.graphs == 1
    first = scanner.first
    assert (first.role, first.tensor, first.step) == ("external", "b1.fc.weight", 2)
    assert first.reader == "b1.fc"


def test_a_module_that_makes_nan_is_the_origin(compiled):
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(nn.Identity(), Root(), nn.Softmax(-1))
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    scanner = nanscan.enable(call, on_anomaly="record")
    with torch.no_grad():
        call(torch.ones(2, 4))
        call(-torch.ones(2, 4))
    scanner.flush()
    assert (scanner.first.module, scanner.first.role, scanner.first.step) == ("1", "origin", 1)
    assert scanner.first.inputs["input 0"].nonfinite == 0
    assert scanner.first.chain[0].startswith("1")


def test_bad_data(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="record")
    with torch.no_grad():
        watched.call(torch.ones(2, 4))
        watched.call(torch.full((2, 4), NAN))
    scanner.flush()
    assert (scanner.first.role, scanner.first.phase, scanner.first.batch) == ("external", "data", 1)


def test_raise_comes_out_of_the_compiled_model(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="raise")
    with torch.no_grad():
        watched.call(torch.ones(2, 4))
        watched.model.out.bias.fill_(NAN)
        with pytest.raises(nanscan.NonFiniteError, match="out") as info:
            watched.call(torch.ones(2, 4))
    assert info.value.event is scanner.first
    assert watched.graphs == 1


def test_stop_comes_at_the_next_step(compiled):
    watched = compiled()
    nanscan.enable(watched.call, on_anomaly="stop")
    with torch.no_grad():
        watched.model.out.bias.fill_(NAN)
    with pytest.raises(nanscan.NonFiniteError):
        watched.train(2)


def test_warn_points_at_the_users_line(compiled):
    watched = compiled()
    nanscan.enable(watched.call)
    with torch.no_grad():
        watched.model.out.bias.fill_(NAN)
        with pytest.warns(nanscan.NonFiniteWarning) as caught:
            watched.call(torch.ones(2, 4))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_bad_gradient_keeps_its_phase(compiled, set_to_none):
    # GIVEN gradients that are zeroed, not dropped: each backward writes the same tensors again
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="record")
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=1e-3)
    for step in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        (watched.call(torch.ones(2, 4)) * (INF if step == 2 else 1.0)).sum().backward()
        optimizer.step()
    scanner.close()
    assert (scanner.first.step, scanner.first.phase) == (2, "backward"), scanner.first.evidence


def test_a_bad_gradient_made_inside_the_graph(compiled):
    class Abs(nn.Module):
        def forward(self, x):
            return (x * x).sqrt()  # its gradient at 0 is 0 / 0

    model = nn.Sequential(nn.Linear(4, 4), Abs(), nn.Linear(4, 1))
    nn.init.zeros_(model[0].weight), nn.init.zeros_(model[0].bias)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    scanner = nanscan.enable(call, on_anomaly="record")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    call(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scanner.close()
    assert scanner.first.phase == "backward"
    assert scanner.first.tensor in ("0.weight", "0.bias")


def test_a_bad_gradient_without_an_optimizer(compiled):
    # GIVEN a program that updates by hand: nobody calls an optimizer's hook
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="record")
    for step in range(4):
        (watched.call(torch.ones(2, 4)) * (INF if step == 1 else 1.0)).sum().backward()
        with torch.no_grad():
            for p in watched.model.parameters():
                p -= 1e-3 * p.grad.nan_to_num(0, 0, 0)
                p.grad = None
    scanner.close()
    assert scanner.first is not None
    assert scanner.first.phase == "backward"
