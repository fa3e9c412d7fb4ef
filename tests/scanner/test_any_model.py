"""enable(None): every outermost module is watched from its first call on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan

NAN = float("nan")


def test_nothing_is_hooked_before_the_first_call(training, hooks_of):
    scanner = nanscan.enable(on_anomaly="record")
    assert scanner.coverage["modules"] == {}
    assert hooks_of(training.net) == ["module forward pre", "optimizer pre", "optimizer post"] + [
        f"GradScaler.{name}" for name in ("scale", "step", "update")
    ]


def test_the_outermost_module_is_attached_under_its_own_names(training):
    scanner = nanscan.enable(on_anomaly="record")
    training.run(3, at={2: "forward"})
    assert scanner.coverage["modules"] == {"": "Net", "a": "Linear", "trap": "Trap", "b": "Linear"}
    assert (scanner.first.module, scanner.first.step, scanner.first.batch) == ("trap", 2, 2)
    assert scanner.stats["steps"] == 3


def test_the_first_call_is_a_batch_like_any_other(training):
    scanner = nanscan.enable(on_anomaly="record")
    training.run(1)
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (1, 1)
    training.run(2)
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (3, 3)


@pytest.mark.parametrize("bad", ["forward", "backward"])
def test_an_anomaly_of_the_first_call(training, bad):
    scanner = nanscan.enable(on_anomaly="record")
    training.run(1, at={0: bad})
    first = scanner.first
    assert (first.module, first.phase, first.step, first.batch) == ("trap", bad, 0, 0)


def test_bad_data_of_the_first_call(make_net):
    net = make_net()
    scanner = nanscan.enable(on_anomaly="record")
    with torch.no_grad():
        net(torch.full((1, 4), NAN))
    scanner.flush()
    assert (scanner.first.role, scanner.first.phase, scanner.first.tensor) == ("external", "data", "input 0")


def test_bad_data_by_keyword_of_the_first_call():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, *, x):
            return self.fc(x)

    model = Keyword()
    scanner = nanscan.enable(on_anomaly="record")
    with torch.no_grad():
        model(x=torch.full((1, 4), NAN))
    scanner.flush()
    assert (scanner.first.role, scanner.first.phase) == ("external", "data")


def test_a_model_that_is_a_single_module_and_is_called_once():
    model = nn.Linear(4, 2)
    scanner = nanscan.enable(on_anomaly="record")
    with torch.no_grad():
        model(torch.full((1, 4), NAN))
    scanner.flush()
    assert scanner.first is not None
    assert scanner.first.role == "external"


def test_a_second_model_has_its_class_as_prefix(training):
    head = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    scanner = nanscan.enable(on_anomaly="record")
    for i in range(3):
        if i == 2:
            with torch.no_grad():
                head[2].weight.fill_(NAN)
        training.optimizer.zero_grad()
        head(training.net(torch.ones(3, 4))).sum().backward()
        training.optimizer.step()
    modules = scanner.coverage["modules"]
    assert {"", "a", "b", "Sequential", "Sequential.0", "Sequential.2"} <= set(modules)
    assert "Sequential.2.weight" in scanner.coverage["parameters"]
    assert scanner.stats["steps"] == 3
    assert scanner.stats["batches"] == 3
    assert scanner.first.tensor == "Sequential.2.weight"


def test_a_third_model_of_the_same_class_gets_a_number(make_net):
    first, second, third = (make_net() for _ in range(3))
    scanner = nanscan.enable(on_anomaly="record")
    with torch.no_grad():
        for net in (first, second, third):
            net(torch.ones(1, 4))
    assert {"a", "Net.a", "Net2.a"} <= set(scanner.coverage["modules"])


def test_two_models_may_share_a_module(make_net):
    # GIVEN an encoder and a decoder with one embedding: a module of both, watched once
    first, second = make_net(), make_net()
    second.a = first.a
    scanner = nanscan.enable(on_anomaly="record")
    with torch.no_grad():
        first(torch.ones(1, 4))
        second(torch.ones(1, 4))
    assert {"a", "b", "Net", "Net.trap", "Net.b"} <= set(scanner.coverage["modules"])


def test_loss_modules_do_not_tick_the_clock(training):
    # GIVEN loss modules without parameters, called before and after the model
    loss, prepare = nn.MSELoss(), nn.Flatten()
    scanner = nanscan.enable(on_anomaly="record")
    for i in range(4):
        training.net.trap.bad = "forward" if i == 2 else None
        training.optimizer.zero_grad()
        out = training.net(prepare(torch.ones(3, 4)))
        loss(out, torch.zeros_like(out)).backward()
        training.optimizer.step()
    assert (scanner.stats["steps"], scanner.stats["batches"]) == (4, 4)
    assert (scanner.first.step, scanner.first.module) == (2, "trap")
    assert {"MSELoss", "Flatten"} <= set(scanner.coverage["modules"].values())


def test_a_loss_module_can_be_the_origin(training):
    class LogLoss(nn.Module):
        def forward(self, x):
            return x.detach().mul(0).sub(1).log().sum() + x.sum()

    loss = LogLoss()
    scanner = nanscan.enable(on_anomaly="record")
    loss(training.net(torch.ones(3, 4)))
    loss(training.net(torch.ones(3, 4)))
    assert scanner.first.module_type == "LogLoss"


def test_a_model_watched_by_another_scanner_is_left_alone(training, make_net):
    other = make_net()
    own = nanscan.enable(training.net, on_anomaly="record")
    anyone = nanscan.enable(on_anomaly="record")
    training.run(2, at={1: "forward"})
    with torch.no_grad():
        other(torch.ones(1, 4))
    assert own.first.module == "trap"
    assert anyone.events == ()
    assert set(anyone.coverage["modules"]) == {"", "a", "trap", "b"}
    assert anyone.stats["batches"] == 1


def test_close_takes_everything_off(training, hooks_of):
    head = nn.Linear(2, 1)
    scanner = nanscan.enable(on_anomaly="record")
    head(training.net(torch.ones(3, 4))).sum().backward()
    assert len(hooks_of(head)) > len(hooks_of(nn.Identity()))
    scanner.close()
    assert hooks_of(training.net) == []
    assert hooks_of(head) == []
    with nanscan.enable(training.net):
        pass


def test_a_model_that_is_gone_is_forgotten(make_net):
    # GIVEN a program that makes a fresh model in each round (a search over settings)
    scanner = nanscan.enable(on_anomaly="record")
    for _ in range(30):
        net = make_net()
        net(torch.ones(1, 4)).sum().backward()
        del net
    assert len(scanner.coverage["parameters"]) <= 8 * 4


def test_report_without_any_model():
    scanner = nanscan.enable()
    assert scanner.report().startswith("nanscan: nothing seen yet")
    nanscan.check(torch.ones(2), "loss")
    scanner.close()
