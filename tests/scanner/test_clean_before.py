"""The last module that was still good before the culprit, with its max|x|: the other side of the boundary."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan

NAN = float("nan")


class Between(nn.Module):
    """Makes a NaN in its own code, between the two modules it calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.bad = False

    def forward(self, x):
        h = self.first(x)
        return self.second(h * NAN if self.bad else h)


class Pair(nn.Module):
    """Returns two tensors, of which one may be bad."""

    bad = False

    def forward(self, x):
        return x * 3, (x * NAN if self.bad else x)


class First(nn.Module):
    def forward(self, pair):
        return pair[0] + pair[1]


def outputs(net, x):
    """max|x| of what each module returns, by name: from the tensors, in a run that nobody watches."""
    seen, handles = {}, []
    for name, module in net.named_modules():
        handles.append(
            module.register_forward_hook(
                lambda m, args, out, name=name: seen.__setitem__(
                    name, max(t.detach().abs().max().item() for t in (out if isinstance(out, tuple) else (out,)))
                )
            )
        )
    net(x)
    for handle in handles:
        handle.remove()
    return seen


def first_of(net, inputs, bad_from):
    scanner = nanscan.enable(net, on_anomaly="record", escalate=False)
    for i, x in enumerate(inputs):
        bad_from(i)
        net(x).sum().backward()
        scanner.step()
    event = scanner.first
    scanner.close()
    return event


@pytest.fixture
def inputs():
    return [torch.randn(3, 4) * (i + 1) for i in range(4)]


def test_it_is_the_module_before_in_the_same_forward(make_net, inputs):
    net = make_net()
    expected = outputs(net, inputs[2])["a"]
    event = first_of(net, inputs, lambda i: setattr(net.trap, "bad", "forward" if i == 2 else None))
    assert (event.module, event.step) == ("trap", 2)
    assert event.clean_before == f"a (Linear) before it was finite, max|x| {expected:.3g}"


def test_a_module_with_several_outputs_counts_as_one(inputs):
    net = nn.Sequential(nn.Linear(4, 8), Pair(), First(), Between())
    expected = outputs(net, inputs[1])
    event = first_of(net, inputs, lambda i: setattr(net[3], "bad", i == 1))
    assert event.module == "3"
    assert event.clean_before == f"3.first (Linear) before it was finite, max|x| {expected['3.first']:.3g}"
    net[3].bad, net[1].bad = False, True
    event = first_of(net, inputs, lambda i: None)
    assert event.module == "1"
    assert event.clean_before.startswith("0 (Linear) before it was finite")


def test_the_largest_of_several_outputs(inputs):
    class After(nn.Module):
        def forward(self, pair):
            return pair[0] * NAN

    net = nn.Sequential(nn.Linear(4, 8), Pair(), After())
    expected = outputs(net, inputs[0])["1"]
    event = first_of(net, inputs[:1], lambda i: None)
    assert event.clean_before == f"1 (Pair) before it was finite, max|x| {expected:.3g}"


def test_the_first_module_has_none_before(inputs):
    class Bad(nn.Module):
        def forward(self, x):
            return x * NAN

    event = first_of(nn.Sequential(Bad(), nn.Linear(4, 2)), inputs, lambda i: None)
    assert event.module == "0"
    assert event.clean_before is None


def test_bad_data_and_bad_parameters_have_none(make_net, inputs):
    net = make_net()
    inputs[1][0, 0] = NAN
    event = first_of(net, inputs, lambda i: None)
    assert event.phase == "data"
    assert event.clean_before is None
    net = make_net()
    with torch.no_grad():
        net.b.weight[0, 0] = NAN
    event = first_of(net, [torch.ones(3, 4)], lambda i: None)
    assert event.tensor == "b.weight"
    assert event.clean_before is None


def test_a_check_is_a_neighbour_too(inputs):
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 8)
            self.out = nn.Linear(8, 2)

        def forward(self, x):
            h = nanscan.check(self.fc(x) * 5, "scores")
            h = torch.ones(3, 8) * 4 if h is None else h
            return self.out(h * NAN)

    event = first_of(Checked(), inputs[:1], lambda i: None)
    assert event.clean_before.startswith("check 'scores' before it was finite, max|x| ")


def test_the_report_shows_it_beside_the_history(make_net, inputs):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record", escalate=False)
    for i, x in enumerate(inputs):
        net.trap.bad = "forward" if i == 3 else None
        net(x).sum().backward()
        scanner.step()
    text = " ".join(scanner.report().split())
    assert "before max|x| last 3 steps: " in text
    assert f"; {scanner.first.clean_before} " in text
