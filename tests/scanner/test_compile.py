"""torch.compile(fullgraph=True): still one graph, the same numbers, every step counted, nothing left after close."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import nanscan

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_the_same_numbers_and_every_step(compiled, backend):
    free, watched = compiled(backend), compiled(backend)
    free.model.load_state_dict(watched.model.state_dict())
    losses = free.train(5)
    scanner = nanscan.enable(watched.model, on_anomaly="raise")
    assert watched.train(5) == losses
    assert watched.graphs == 1
    for (name, ours), theirs in zip(watched.model.named_parameters(), free.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), f"{name} differs"
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (5, 5)
    assert scanner.stats["scans"] > 5 * 12
    assert scanner.first is None


def test_a_compiled_model_can_be_passed_itself(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.call, on_anomaly="record")
    watched.train(3)
    assert watched.graphs == 1
    assert {"", "inp", "b0", "b0.norm", "b0.fc", "b0.act"} <= set(scanner.coverage["modules"])
    assert scanner.stats["batches"] == 3
    with pytest.raises(nanscan.NanscanError, match="already watched"):
        nanscan.enable(watched.model)


def test_a_model_compiled_in_place(compiled):
    # GIVEN model.compile() instead of torch.compile(model)
    watched = compiled()
    watched.model.compile(backend=watched.counter, fullgraph=True)
    scanner = nanscan.enable(watched.model, on_anomaly="record")
    watched.train(3, call=watched.model)
    assert watched.graphs == 1
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (3, 3)
    assert scanner.coverage["notes"] == []


def test_a_model_called_inside_a_compiled_function(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.model, on_anomaly="record")
    counter = CompileCounterWithBackend("aot_eager")
    doubled = torch.compile(lambda x: watched.model(x * 2), backend=counter, fullgraph=True)
    watched.train(3, call=doubled)
    assert counter.frame_count == 1
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (3, 3)
    with torch.no_grad():
        watched.model.b1.fc.bias.fill_(float("inf"))
    watched.train(1, call=doubled)
    assert (scanner.first.step, scanner.first.phase) == (3, "forward")
    assert "b1.fc" in (scanner.first.module, scanner.first.reader)


def test_check_inside_a_compiled_function(compiled):
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


def test_check_inside_a_compiled_function_without_a_scanner(compiled):
    function = torch.compile(lambda x: nanscan.check(x.log(), "log").sum(), backend="aot_eager", fullgraph=True)
    assert torch.isnan(function(-torch.ones(3)))


def test_after_close_nothing_is_observed(compiled, hooks_of):
    watched = compiled()
    scanner = nanscan.enable(watched.model, on_anomaly="raise")
    watched.train(2)
    scanner.close()
    assert hooks_of(watched.model) == []
    records = scanner.stats["records"]
    watched.call(torch.full((2, 4), float("nan"))).sum().backward()
    assert scanner.stats["records"] == records


def test_every(compiled):
    watched = compiled()
    scanner = nanscan.enable(watched.model, on_anomaly="record", every=2)
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.0)
    scans = []
    for _ in range(4):
        before = scanner.stats["scans"]
        watched.call(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scans.append(scanner.stats["scans"] > before)
    assert scans == [True, False, True, False]
    assert watched.graphs == 1


def test_enable_after_the_first_compiled_call_says_so(compiled):
    watched = compiled()
    watched.call(torch.ones(2, 4))
    with pytest.warns(nanscan.NanscanWarning, match="torch._dynamo.reset.*before the first call") as caught:
        scanner = nanscan.enable(watched.call, on_anomaly="record")
    assert caught[0].filename == __file__
    assert scanner.coverage["notes"] == [str(caught[0].message)]
    # WHEN the way out is taken
    torch._dynamo.reset()
    with torch.no_grad():
        watched.call(torch.full((2, 4), float("nan")))
    scanner.flush()
    assert scanner.first.role == "external"


def test_enable_before_the_first_call_is_silent_whatever_else_was_compiled(compiled):
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    watched = compiled()
    nanscan.enable(watched.call)  # a notice would be an error here
    watched.train(1)


def test_enable_none(compiled):
    watched = compiled()
    scanner = nanscan.enable(on_anomaly="record")
    watched.train(3)
    assert watched.graphs == 1
    assert scanner.stats["steps"] == 3
    # What runs inside a graph before a hook is there stays unseen, and that is said.
    assert scanner.coverage["modules"] or scanner.coverage["notes"]
