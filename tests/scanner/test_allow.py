"""nanscan.allow(...): counted, never alarmed, and never hides a later culprit."""

from __future__ import annotations

import pytest
import torch

import nanscan

NAN, INF = float("nan"), float("inf")


def infer(net, bad=None, x=None):
    net.trap.bad = bad
    with torch.no_grad():
        return net(torch.ones(3, 4) if x is None else x)


class Branches(torch.nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.first(x).nan_to_num(0.0) + self.second(x)


def test_an_allowed_module_is_counted_and_silent(make_net):
    net = make_net()
    allowed = nanscan.allow("trap", kinds="nan")
    scanner = nanscan.enable(net, on_anomaly="raise")
    for bad in ("forward", None, "forward"):
        infer(net, bad)
    scanner.close()
    assert scanner.first is None
    assert allowed.count == 2
    assert scanner.stats["allowed"] == 2
    assert "2 allowed" in scanner.report()


ROWS = [
    pytest.param("trap", None, True, id="every-kind"),
    pytest.param("tr*", "nan", True, id="a-glob"),
    pytest.param("trap", ["nan", "inf"], True, id="several-kinds"),
    pytest.param("trap", "inf", False, id="another-kind"),
    pytest.param("b", None, False, id="another-module"),
    pytest.param("Trap", None, False, id="a-class-is-no-name"),
]


@pytest.mark.parametrize(("pattern", "kinds", "silent"), ROWS)
def test_pattern_and_kinds(make_net, pattern, kinds, silent):
    net = make_net()
    nanscan.allow(pattern, kinds)
    scanner = nanscan.enable(net, on_anomaly="record")
    infer(net, "forward")
    scanner.close()
    assert (scanner.first is None) == silent


def test_signs_are_told_apart(make_net):
    for kinds, silent in (("+inf", True), ("-inf", False), ("inf", True)):
        net = make_net()
        net.b = torch.nn.Identity()
        allowed = nanscan.allow("trap", kinds)
        scanner = nanscan.enable(net, on_anomaly="record")
        infer(net, "inf")
        scanner.close()
        assert (scanner.first is None) == silent, kinds
        allowed.remove()


def test_an_allowed_parameter(make_net):
    net = make_net()
    allowed = nanscan.allow("a.weight", kinds="inf")
    scanner = nanscan.enable(net, on_anomaly="record")
    with torch.no_grad():
        net.a.weight[0, 0] = INF
    infer(net)
    scanner.close()
    assert scanner.first is None
    assert allowed.count >= 1


def test_an_allowed_gradient(training):
    allowed = nanscan.allow("trap", kinds="nan")
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.net.trap.bad = "backward"
    training.net(torch.ones(3, 4)).sum().backward()
    scanner.close()
    assert scanner.first is None
    assert allowed.count >= 1


def test_an_allowed_check(training):
    allowed = nanscan.allow("best so far", kinds="inf")
    scanner = nanscan.enable(training.net, on_anomaly="raise")
    nanscan.check(torch.tensor(INF), "best so far")
    assert allowed.count == 1
    with pytest.raises(nanscan.NonFiniteError):
        nanscan.check(torch.tensor(NAN), "best so far")
    assert scanner.first.kind == "nan"


def test_it_hides_no_later_culprit_of_another_step(make_net):
    net = make_net()
    nanscan.allow("trap")
    scanner = nanscan.enable(net, on_anomaly="record")
    infer(net, "forward")
    with torch.no_grad():
        net.b.weight.fill_(INF)
    infer(net)
    assert (scanner.first.tensor, scanner.first.step) == ("b.weight", 1)


def test_it_hides_no_later_culprit_of_the_same_step(make_net):
    # GIVEN two branches: the NaN of the first is allowed and selected away, the second one's is neither
    first, second = make_net(), make_net()
    first.trap.bad = second.trap.bad = "forward"
    nanscan.allow("first.trap")
    model = Branches(first, second)
    scanner = nanscan.enable(model, on_anomaly="record")
    with torch.no_grad():
        model(torch.ones(3, 4))
    scanner.close()
    assert scanner.first.module == "second.trap"


def test_it_hides_no_bad_update(training):
    # GIVEN an allowed NaN in a module that a loss ignores, and an update that overflows in the same step
    net = training.net
    nanscan.allow("trap")
    scanner = nanscan.enable(net, on_anomaly="record")
    optimizer = torch.optim.SGD(net.parameters(), lr=INF)
    net.trap.bad = "forward"
    with torch.no_grad():
        net(torch.ones(3, 4))
    net.trap.bad = None
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    scanner.close()
    assert scanner.first is not None
    assert scanner.first.phase == "optimizer"


def test_remove_alarms_again(make_net):
    net = make_net()
    allowed = nanscan.allow("trap")
    scanner = nanscan.enable(net, on_anomaly="record")
    infer(net, "forward")
    scanner.flush()
    assert scanner.first is None
    allowed.remove()
    allowed.remove()
    infer(net, "forward")
    scanner.flush()
    assert (scanner.first.module, scanner.first.step) == ("trap", 1)
    assert allowed.count == 1


def test_allow_while_the_scanner_is_open(make_net):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record")
    infer(net, "forward")
    nanscan.allow("trap")
    infer(net, "forward")
    scanner.close()
    assert scanner.stats["errors"] == 1
    assert scanner.stats["allowed"] == 1


def test_a_handle_shows_what_it_is():
    assert repr(nanscan.allow("mask", ["-inf"])) == "<allow 'mask', -inf, 0 times>"


def test_an_allowed_explosion(make_net):
    counts = []
    for kinds in ((), ("explosion",)):
        torch.manual_seed(0)
        if kinds:
            nanscan.allow("*", kinds)
        net = make_net()
        scanner = nanscan.enable(net, on_anomaly="record", growth={"warmup": 10, "window": 16})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        for scale in [1.0] * 20 + [3.0**k for k in range(1, 14)]:
            optimizer.zero_grad()
            (net(torch.full((3, 4), scale)).sum() * scale).backward()
            optimizer.step()
        scanner.close()
        counts.append((scanner.stats["warnings"], scanner.stats["allowed"]))
    assert counts[0][0] >= 1
    assert counts[1][0] == 0
    assert counts[1][1] >= 1
