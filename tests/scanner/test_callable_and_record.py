"""on_anomaly="record" is silent; a callable is handed each error and warning, and what it raises comes out."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import nanscan


def test_record_keeps_and_says_nothing(training, capfd):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.run(6, at={1: "forward", 3: "backward", 4: "inf"})
        scanner.close()
    assert capfd.readouterr() == ("", "")
    assert scanner.first.step == 1
    assert scanner.stats["errors"] >= 1


def test_events_are_kept_up_to_max_events(make_net):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record", max_events=3)
    with torch.no_grad():
        for _ in range(10):
            net(torch.full((1, 4), float("nan")))
    assert [e.step for e in scanner.events] == [0, 1, 2]
    assert scanner.stats["errors"] == 10
    assert scanner.stats["suppressed"] == 7


def test_a_callable_gets_the_events(training):
    seen = []
    scanner = nanscan.enable(training.net, on_anomaly=seen.append)
    training.run(3, at={1: "forward"})
    assert [e.module for e in seen] == ["trap"]
    assert seen[0] is scanner.first


def test_a_callable_is_not_handed_infos(make_net):
    # GIVEN a mask module that returns -inf on purpose, which is at most an info
    net = make_net()
    net.trap.forward = lambda x: torch.where(x > 0, x, torch.full_like(x, float("-inf"))).softmax(-1)
    seen = []
    scanner = nanscan.enable(net, on_anomaly=seen.append)
    with torch.no_grad():
        net(torch.ones(2, 4))
        net(torch.ones(2, 4))
    scanner.close()
    assert [e for e in seen if e.severity == "info"] == []


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
def test_what_a_callable_raises_in_forward_comes_out(training, error):
    def stop(event):
        raise error(event.module)

    scanner = nanscan.enable(training.net, on_anomaly=stop)
    with pytest.raises(error, match="trap") as info:
        training.step("forward")
    assert info.value.__cause__ is None
    assert not scanner.closed
    assert scanner.coverage["failure"] is None
    assert scanner.first.module == "trap"


def test_what_a_callable_raises_in_backward_comes_out(training):
    def stop(event):
        raise OwnError(event.module, event.phase)

    scanner = nanscan.enable(training.net, on_anomaly=stop)
    with pytest.raises(OwnError) as info:
        training.step("backward")
    assert info.value.args == ("trap", "backward")
    assert not scanner.closed


class Branches(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.first(x) + self.second(x)


def test_a_callable_that_raises_loses_no_event(make_net):
    # GIVEN two origins that are told at the same moment
    def stop(event):
        raise OwnError

    errors = []
    for policy in ("record", stop):
        model = Branches(make_net(), make_net())
        model.first.trap.bad = model.second.trap.bad = "forward"
        scanner = nanscan.enable(model, on_anomaly=policy)
        with torch.no_grad(), nullcontext() if policy == "record" else pytest.raises(OwnError):
            model(torch.ones(1, 4))
        errors.append([e.module for e in scanner.events])
    assert errors[0] == ["first.trap", "second.trap"]
    assert errors[1] == errors[0]


def test_a_callable_may_use_the_scanner(training):
    reports = []
    scanner = nanscan.enable(training.net, on_anomaly=lambda event: reports.append(scanner.report()))
    training.run(2, at={1: "forward"})
    assert len(reports) == 1
    assert "trap  Trap" in reports[0]


def test_a_callable_may_close_the_scanner(training, hooks_of):
    scanner = nanscan.enable(training.net, on_anomaly=lambda event: scanner.close())
    training.run(4, at={1: "forward"})
    assert scanner.closed
    assert hooks_of(training.net) == []
    assert scanner.coverage["failure"] is None
    assert scanner.first.module == "trap"


def test_a_callable_may_run_the_model(training):
    # GIVEN somebody who tries the same batch again in double precision
    again = []

    def retry(event):
        if not again:
            with torch.no_grad():
                again.append(training.net(torch.ones(1, 4)))

    scanner = nanscan.enable(training.net, on_anomaly=retry)
    training.run(3, at={1: "forward"})
    assert len(again) == 1
    assert scanner.coverage["failure"] is None
    assert scanner.first.module == "trap"
