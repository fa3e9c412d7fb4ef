"""What a scanner must not do to the program: keep tensors, raise the memory, stop it for a fault of its own."""

from __future__ import annotations

import gc
import logging
import weakref
from itertools import accumulate

import pytest
import torch
from torch import nn

import nanscan
from nanscan.origin import ModuleOrigin


class Remembers(nn.Module):
    """Takes weak references to every activation and the gradients that reach it."""

    def __init__(self):
        super().__init__()
        self.refs = []
        self.a, self.act, self.b = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)

    def note(self, tensor):
        self.refs.append(weakref.ref(tensor))
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self.refs.append(weakref.ref(grad)))
        return tensor

    def forward(self, x):
        return self.note(self.b(self.note(self.act(self.note(self.a(x))))))


@pytest.mark.parametrize("bad", [False, True], ids=["healthy", "bad"])
def test_no_activation_or_gradient_outlives_its_step(bad):
    model = Remembers()
    scanner = nanscan.enable(model, on_anomaly="record")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.full((3, 4), float("nan") if bad else 1.0)
        model.refs.append(weakref.ref(x))
        model(x).sum().backward()
        del x
        optimizer.step()
        optimizer.zero_grad()
        assert len(model.refs) == 7
        assert [ref() for ref in model.refs] == [None] * 7
        model.refs.clear()
    assert bool(scanner.events) == bad


def live_tensors():
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def make_deep():
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())))


def test_the_number_of_live_objects_is_flat(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    counts = []
    for i in range(300):
        training.step()
        if i % 50 == 49:
            scanner.poll()
            gc.collect()
            counts.append((live_tensors(), len(gc.get_objects())))
    tensors, objects = zip(*counts[1:], strict=True)
    assert len(set(tensors)) == 1
    assert max(objects) - min(objects) < 50


def test_the_number_of_live_tensors_in_a_step_is_the_same():
    counts = []
    for watch in (False, True):
        model = make_deep()
        seen = []
        model[6].register_forward_hook(lambda *args, seen=seen: seen.append(live_tensors()))
        if watch:
            nanscan.enable(model, on_anomaly="record")
        gc.collect()
        before = live_tensors()
        for _ in range(3):
            loss = model(torch.ones(4, 16)).sum()
            seen.append(live_tensors())
            loss.backward()
            seen.append(live_tensors())
            model.zero_grad()
            del loss
            seen.append(live_tensors())
        counts.append([n - before for n in seen])
        del model, seen
    assert counts[0] == counts[1]


def allocations_of(action):
    """Bytes of every block that PyTorch's allocator hands out (> 0) and takes back (< 0), in order."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    return [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]


def test_every_block_of_tensor_memory_is_the_same():
    runs = []
    for watch in (False, True):
        torch.manual_seed(0)
        model = make_deep()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if watch:
            nanscan.enable(model, on_anomaly="record")

        def steps(model=model, optimizer=optimizer):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(64, 16)).sum().backward()
                optimizer.step()

        allocations_of(steps)  # the profiler knows a block only if it saw it being handed out
        runs.append(allocations_of(steps))
    assert max(accumulate(runs[0])) > 64 * 16 * 4 * 6
    assert runs[0] == runs[1], "what is alive when, and with it the peak, differs"


@pytest.fixture
def broken_origin(monkeypatch):
    """Our own origin analysis fails from now on."""

    def fail(self, *args, **kwargs):
        raise IndexError("planted in the origin analysis")

    monkeypatch.setattr(ModuleOrigin, "decide", fail)


@pytest.mark.parametrize("policy", ["warn", "raise", "stop", "record"])
def test_a_fault_of_ours_does_not_stop_training(training, broken_origin, policy, caplog, hooks_of, tmp_path):
    scanner = nanscan.enable(training.net, on_anomaly=policy, dir=tmp_path)
    with caplog.at_level(logging.ERROR):
        training.run(5, at={1: "forward"})
    # THEN one logged error with the traceback, the scanner off, the report honest
    errors = [record for record in caplog.records if record.name == "nanscan" and record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "internal fault" in errors[0].getMessage()
    assert errors[0].exc_info is not None
    assert scanner.closed
    assert hooks_of(training.net) == []
    assert "IndexError: planted in the origin analysis" in scanner.report()
    assert "healthy" not in scanner.report().splitlines()[0]
    assert scanner.coverage["failure"] == "IndexError: planted in the origin analysis"
    scanner.close()


def test_a_fault_of_ours_ends_the_log(training, broken_origin, caplog, tmp_path):
    nanscan.enable(training.net, on_anomaly="record", dir=tmp_path)
    training.run(3)
    (path,) = tmp_path.iterdir()
    last = path.read_text().splitlines()[-1]
    assert '"kind":"end"' in last
    assert "planted in the origin analysis" in last


def test_a_fault_of_ours_in_backward(training, monkeypatch, caplog):
    from nanscan.origin import backward

    def fail(*args):
        raise RuntimeError("planted")

    monkeypatch.setattr(backward, "find", fail)
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    training.run(3, at={1: "backward"})
    assert scanner.closed
    assert "planted" in scanner.report()


def test_a_fault_of_ours_in_a_check(training, broken_origin, caplog):
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    assert nanscan.check(torch.tensor([float("nan")]), "loss").isnan().all()
    assert scanner.closed


def test_after_a_fault_a_new_scanner_can_be_opened(training, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        patched.setattr(ModuleOrigin, "decide", lambda *args, **kwargs: 1 / 0)
        nanscan.enable(training.net)
        training.run(2, at={0: "forward"})
    training.net.load_state_dict({k: torch.zeros_like(v) for k, v in training.net.state_dict().items()})
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.run(2, at={3: "forward"})
    assert scanner.first.module == "trap"
