"""on_anomaly="raise" comes out at the nearest safe point, "stop" at the next step's beginning."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan


def values(net):
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_raise_in_forward_comes_out_of_the_model(training):
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    training.run(2)
    training.net.trap.bad = "forward"
    with pytest.raises(nanscan.NonFiniteError) as info:
        training.net(torch.ones(3, 4))
    event = info.value.event
    assert (event.module, event.phase, event.step, event.kind) == ("trap", "forward", 2, "nan")
    assert event is scanner.first
    for words in ("FIRST NON-FINITE", "step 2", "trap  Trap", "24 NaN of 24"):
        assert words in str(info.value)
    assert isinstance(info.value, FloatingPointError)


def test_raise_in_backward_comes_out_of_backward(training):
    # GIVEN a gradient that goes bad in the trap
    nanscan.enable(training.net, on_anomaly="raise")
    training.net.trap.bad = "backward"
    loss = training.net(torch.ones(3, 4)).sum()
    before = values(training.net)
    with pytest.raises(nanscan.NonFiniteError, match="trap") as info:
        loss.backward()
    assert (info.value.event.module, info.value.event.phase) == ("trap", "backward")
    assert same(values(training.net), before)


def test_raise_for_a_gradient_made_bad_after_backward_comes_before_the_update(training):
    nanscan.enable(training.net, on_anomaly="raise")
    training.net(torch.ones(3, 4)).sum().backward()
    with torch.no_grad():
        training.net.b.weight.grad[0, 3] = float("inf")  # clipping by a zero norm, say
    before = values(training.net)
    with pytest.raises(nanscan.NonFiniteError, match=r"b\.weight") as info:
        training.optimizer.step()
    assert info.value.event.phase == "optimizer"
    assert same(values(training.net), before), "the optimizer wrote parameters before the error came"


def test_raise_for_an_update_that_overflows_comes_out_of_the_optimizer(make_net):
    net = make_net()
    nanscan.enable(net, on_anomaly="raise")
    optimizer = torch.optim.SGD(net.parameters(), lr=3e38)
    net(torch.full((3, 4), 100.0)).sum().backward()
    with pytest.raises(nanscan.NonFiniteError) as info:
        optimizer.step()
    assert info.value.event.phase == "optimizer"
    assert info.value.event.tensor is not None


def test_raise_in_the_loss_code_comes_out_of_backward(training):
    nanscan.enable(training.net, on_anomaly="raise")
    out = training.net(torch.ones(3, 4))
    with pytest.raises(nanscan.NonFiniteError) as info:
        (out.detach() * 0 - 1 + out * 0).sqrt().sum().backward()
    assert info.value.event.phase == "backward"
    assert info.value.event.module is None


def test_training_can_go_on_after_raise(training):
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    for bad in ("forward", None, "backward", None):
        try:
            training.step(bad)
        except nanscan.NonFiniteError:
            training.optimizer.zero_grad()
            scanner.step()
    scanner.flush()
    assert [(e.step, e.phase) for e in scanner.events] == [(0, "forward"), (2, "backward")]
    assert scanner.stats["steps"] == 4


def test_raise_ignores_what_is_no_error(make_training, make_net):
    # GIVEN gradients and outputs that explode, and stay finite
    training = make_training(make_net(), lr=0.0)
    scanner = nanscan.enable(training.net, on_anomaly="raise", growth={"warmup": 10, "window": 16})
    for scale in [1.0] * 20 + [4.0**k for k in range(1, 12)]:
        training.step(x=torch.full((3, 4), scale))
    assert {e.kind for e in scanner.events} <= {"explosion"}


def test_stop_waits_for_the_next_step(training):
    scanner = nanscan.enable(training.net, on_anomaly="stop")
    training.run(1)
    training.step("forward")  # out of forward, backward and optimizer nothing is raised
    with pytest.raises(nanscan.NonFiniteError) as info:
        training.step()
    assert (info.value.event.step, info.value.event.module) == (1, "trap")
    assert scanner.stats["steps"] >= 2


def test_stop_at_scanner_step(make_net):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="stop", clock="manual")
    net.trap.bad = "forward"
    net(torch.ones(3, 4))
    net(torch.ones(3, 4))
    with pytest.raises(nanscan.NonFiniteError, match="trap"):
        scanner.step()
    net.trap.bad = None
    net(torch.ones(3, 4))
    scanner.step()


def test_stop_in_inference(make_net):
    net = make_net()
    nanscan.enable(net, on_anomaly="stop")
    with torch.no_grad():
        net(torch.full((1, 4), float("nan")))
        with pytest.raises(nanscan.NonFiniteError, match="input 0"):
            net(torch.ones(1, 4))
        net(torch.ones(1, 4))


def test_closing_raises_nothing(training):
    with nanscan.enable(training.net, on_anomaly="stop") as scanner:
        training.run(2, at={1: "forward"})
    assert scanner.first.step == 1


class Outer(nn.Module):
    """A model with its own scanner inside a model with another: what is raised inside passes through both."""

    def __init__(self, inner):
        super().__init__()
        self.call = [inner]  # in a list: it is no submodule
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.call[0](x))


@pytest.mark.parametrize("policy", ["raise", "stop"])
def test_after_raising_the_hooks_are_in_step_again(make_net, policy):
    inner = make_net()
    outer = Outer(inner)
    inside = nanscan.enable(inner, on_anomaly=policy)
    outside = nanscan.enable(outer, on_anomaly="record")
    with torch.no_grad():
        inner.trap.bad = "forward"
        if policy == "stop":
            outer(torch.ones(1, 4))
        with pytest.raises(nanscan.NonFiniteError):
            outer(torch.ones(1, 4))
        inner.trap.bad = None
        outer(torch.ones(1, 4))
        outer.head.weight.fill_(float("nan"))
        outer(torch.ones(1, 4))
    assert outside.events[-1].tensor == "head.weight"
    assert inside.first.module == "trap"
    from nanscan import backends

    core = backends.get().core
    assert core is None or core.module_depth() == 0
