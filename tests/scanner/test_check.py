"""nanscan.check(tensor, name): a bad value there has escaped, and its origin is named together with the check."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan

NAN, INF = float("nan"), float("inf")


def test_returns_its_tensor_whatever_is_open():
    x = torch.tensor([1.0, NAN])
    assert nanscan.check(x, "x") is x
    scanner = nanscan.enable(nn.Linear(2, 2), on_anomaly="record")
    assert nanscan.check(x, "x") is x
    scanner.close()
    assert nanscan.check(x, "x") is x


def test_a_bad_loss_outside_every_module(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    for i in range(3):
        out = training.net(torch.ones(3, 4))
        loss = (out * 0 + (0.0 if i == 2 else 1.0)).log().sum() * 0 + out.sum()
        nanscan.check(loss.detach(), "loss")
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
    first = scanner.first
    assert (first.severity, first.step, first.module, first.tensor) == ("error", 2, None, "loss")
    assert "nothing bad was recorded before this check in the step" in first.evidence
    assert "loss" in scanner.report()


def test_an_origin_that_a_check_catches_is_told_with_it():
    # GIVEN a module whose NaN is selected away again, but not before a check has seen it
    class Selects(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = Log()

        def forward(self, x, check):
            y = self.log(x)
            if check:
                nanscan.check(y, "log of x")
            return torch.where(x > 0, y, 0.0)

    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    for check in (False, True):
        model = Selects()
        scanner = nanscan.enable(model, on_anomaly="record")
        with torch.no_grad():
            model(torch.tensor([1.0, -1.0]), check)
        scanner.close()
        if check:
            assert (scanner.first.module, scanner.first.severity) == ("log", "error")
            assert any("check 'log of x'" in text for text in scanner.first.evidence)
        else:
            assert scanner.first is None, "absorbed by selection"


def test_a_check_inside_a_module_knows_where_it_is(make_net):
    net = make_net()
    net.trap.forward = lambda x: nanscan.check(x - x + INF, "scores").clamp(max=1.0)
    scanner = nanscan.enable(net, on_anomaly="record")
    with torch.no_grad():
        net(torch.ones(1, 4))
    scanner.flush()
    assert (scanner.first.kind, scanner.first.tensor, scanner.first.module) == ("inf", "scores", "trap")


PHASES = [
    pytest.param("data", id="before-the-first-forward"),
    pytest.param("forward", id="after-a-forward"),
    pytest.param("backward", id="in-a-gradient-hook"),
    pytest.param("optimizer", id="in-an-optimizer"),
]


@pytest.mark.parametrize("phase", PHASES)
def test_the_phase_is_where_the_check_stands(training, phase):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    bad = torch.tensor([NAN])
    if phase == "data":
        nanscan.check(bad, "here")
    out = training.net(torch.ones(3, 4))
    if phase == "forward":
        nanscan.check(bad, "here")
    if phase == "backward":
        out.register_hook(lambda grad: nanscan.check(bad, "here") and None)
    out.sum().backward()
    if phase == "optimizer":
        training.optimizer.register_step_pre_hook(lambda *args: None)
        training.optimizer.step(lambda: nanscan.check(bad, "here"))
    scanner.close()
    assert [(e.tensor, e.phase) for e in scanner.events if e.severity == "error"] == [("here", phase)]


def test_an_optimizer_that_failed_is_over(training):
    # GIVEN an optimizer's step that was left by an exception, so that its post hook never ran
    scanner = nanscan.enable(training.net, on_anomaly="record")
    with pytest.raises(ZeroDivisionError):
        training.optimizer.step(lambda: 1 / 0)
    training.net(torch.ones(3, 4))
    nanscan.check(torch.tensor([NAN]), "here")
    assert scanner.first.phase == "forward"


def test_raise_comes_out_of_check(training):
    nanscan.enable(training.net, on_anomaly="raise")
    out = training.net(torch.ones(3, 4))
    with pytest.raises(nanscan.NonFiniteError, match="loss") as info:
        nanscan.check(out.sum() * NAN, "loss")
    assert info.value.event.tensor == "loss"


def test_warn_points_at_the_check(training):
    nanscan.enable(training.net)
    with pytest.warns(nanscan.NonFiniteWarning, match="loss") as caught:
        nanscan.check(torch.tensor(NAN), "loss")
    assert caught[0].filename == __file__


def test_healthy_and_integer_checks_are_silent(training):
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    for value in (torch.ones(3), torch.ones(0), torch.arange(3), torch.ones(3, dtype=torch.bool), torch.tensor(2.0)):
        nanscan.check(value, "value")
    assert scanner.first is None
    assert scanner.stats["unscanned"] == 0, scanner.coverage["unscanned"]


def test_what_cannot_be_scanned_is_counted(training):
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    training.run(1)
    nanscan.check(torch.eye(3).to_sparse(), "sparse")
    assert scanner.stats["unscanned"] == 1
    assert any("sparse" in reason for reason in scanner.coverage["unscanned"])
    assert "1 tensor not scanned" in scanner.report()


def test_every_open_scanner_sees_it(make_net):
    scanners = [nanscan.enable(make_net(), on_anomaly="record") for _ in range(2)]
    nanscan.check(torch.tensor(INF), "loss")
    assert [s.first.tensor for s in scanners] == ["loss", "loss"]


def test_many_names_are_bounded(training):
    # GIVEN a program that writes the step's number into the name
    scanner = nanscan.enable(training.net, on_anomaly="record")
    before = len(scanner.sites)
    for i in range(20_000):
        nanscan.check(torch.ones(1), f"loss {i}")
    assert len(scanner.sites) - before <= 10_000
