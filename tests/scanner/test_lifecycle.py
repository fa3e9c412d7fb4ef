"""From enable() to close(): with-blocks, disable(), and nothing left behind."""

from __future__ import annotations

import gc
import html
import re
import weakref

import pytest
import torch
from torch import nn

import nanscan


def test_enable_and_close(training, hooks_of):
    assert hooks_of(training.net) == []
    scanner = nanscan.enable(training.net, on_anomaly="record")
    assert not scanner.closed
    assert len(hooks_of(training.net)) > 3
    training.run(2)
    scanner.close()
    assert scanner.closed
    assert hooks_of(training.net) == []


def test_a_with_block_closes(training, hooks_of):
    with nanscan.enable(training.net, on_anomaly="record") as scanner:
        training.run(2, at={1: "forward"})
    assert scanner.closed
    assert hooks_of(training.net) == []
    assert scanner.first.step == 1


def test_a_with_block_closes_when_the_program_fails(training, hooks_of):
    scanner = nanscan.enable(training.net)
    with pytest.raises(RuntimeError), scanner:
        training.step(x=torch.ones(3, 5))  # [3, 5] into Linear(4, 8)
    assert scanner.closed
    assert hooks_of(training.net) == []


def test_close_inside_a_with_block(training):
    with nanscan.enable(training.net) as scanner:
        scanner.close()
    assert scanner.closed


def test_disable_closes_every_scanner(training, make_net, hooks_of):
    models = [training.net, make_net(), nn.LSTM(3, 3)]
    scanners = [nanscan.enable(model) for model in models]
    nanscan.disable()
    assert [scanner.closed for scanner in scanners] == [True] * 3
    assert [hooks_of(model) for model in models] == [[]] * 3
    nanscan.disable()


def test_hooks_of_others_stay(make_net):
    net = make_net()
    calls = []
    net.a.register_forward_pre_hook(lambda module, args: calls.append("pre"))
    net.a.register_forward_hook(lambda module, args, out: calls.append("post"))
    with nanscan.enable(net):
        net(torch.ones(1, 4))
    net(torch.ones(1, 4))
    assert calls == ["pre", "post"] * 2


def test_close_in_the_middle_of_a_forward(make_net, hooks_of):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record")
    net.trap.forward = lambda x: (scanner.close(), x)[1]
    net(torch.ones(1, 4)).sum().backward()
    assert scanner.closed
    assert hooks_of(net) == []


def test_close_between_forward_and_backward(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.net.trap.bad = "backward"
    loss = training.net(torch.ones(3, 4)).sum()
    scanner.close()
    loss.backward()
    assert scanner.events == ()


def test_enable_in_the_middle_of_a_forward(make_net):
    net, started = make_net(), []

    def start(x):
        if not started:
            started.append(nanscan.enable(net, on_anomaly="record"))
        return x * 1.0

    net.trap.forward = start
    with torch.no_grad():
        net(torch.ones(1, 4))
        net(torch.full((1, 4), float("nan")))
    assert started[0].first.role == "external"
    assert started[0].coverage["failure"] is None


def test_the_state_dict_is_unchanged(make_net):
    net = make_net()
    before = list(net.state_dict())
    with nanscan.enable(net):
        assert list(net.state_dict()) == before
        net.load_state_dict(net.state_dict())


def test_a_closed_scanner_lets_go_of_the_model(make_net):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record")
    net(torch.ones(1, 4)).sum().backward()
    alive = [weakref.ref(net), *(weakref.ref(p) for p in net.parameters())]
    scanner.close()
    del net
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)
    assert scanner.report().startswith("nanscan: healthy. 1 step")


def test_a_forgotten_scanner_is_collected_after_disable(make_net):
    scanner = nanscan.enable(make_net())
    alive = weakref.ref(scanner)
    nanscan.disable()
    del scanner
    gc.collect()
    assert alive() is None


def test_the_last_step_is_judged_at_close(training):
    # GIVEN a training that ends with a bad step
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.run(2)
    training.net.trap.bad = "backward"
    training.net(torch.ones(3, 4)).sum().backward()
    scanner.close()
    assert (scanner.first.step, scanner.first.phase) == (2, "backward")


def test_a_report_shows_itself_in_notebooks(training):
    class Printer:
        said = ""

        def text(self, text):
            self.said += text

    scanner = nanscan.enable(training.net)
    training.run(1)
    printer = Printer()
    scanner._repr_pretty_(printer, False)
    assert printer.said.startswith("nanscan: healthy. 1 step, 0 anomalies.")


def test_a_notebook_shows_the_rows_of_the_report(training):
    # GIVEN a bad step that nothing has read out yet
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.run(2)
    training.net.trap.bad = "backward"
    training.net(torch.ones(3, 4)).sum().backward()
    # WHEN a notebook shows the scanner THEN it says what report() says
    shown = scanner._repr_html_()
    text = html.unescape(re.sub(r"<[^>]+>", " ", shown))
    assert text.split()[:3] == ["nanscan:", "FIRST", "NON-FINITE"]
    assert text.split() == scanner.report().split()


def test_a_notebook_shows_health_in_two_lines(training):
    scanner = nanscan.enable(training.net)
    training.run(1)
    shown = scanner._repr_html_()
    assert html.unescape(re.sub(r"<[^>]+>", "", shown)).strip() == scanner.report()
    assert "<table" not in shown


def test_a_notebook_shows_that_nanscan_is_off(training, monkeypatch):
    monkeypatch.setenv("NANSCAN", "0")
    assert "nanscan: off (NANSCAN=0)." in nanscan.enable(training.net)._repr_html_()


def test_a_lazy_module_is_watched_once_it_has_parameters():
    # GIVEN parameters that come into being in the first forward
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    scanner = nanscan.enable(model, on_anomaly="record")
    model(torch.ones(1, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
    model(torch.ones(1, 5)).sum().backward()
    model[0].weight.grad.fill_(float("nan"))
    optimizer.step()
    assert "0.weight" in scanner.coverage["parameters"]
    assert scanner.first is not None
    assert (scanner.first.tensor, scanner.first.phase) == ("0.weight", "optimizer")
