"""The level changes from step to step: by `schedule`, and by itself after an anomaly ("escalate")."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan
from nanscan.errors import NanscanWarning


class Net(nn.Module):
    """Makes a NaN between its modules on demand, where module level has no name for it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.bad = False

    def forward(self, x):
        h = self.first(x)
        if self.bad:
            h = torch.log(h - 100)  # the line of the fault
        return self.last(h)


def train(scanner, net, steps, bad=(), careful=True, levels=None):
    """A loop that leaves a bad step out (`careful`), as a GradScaler or a cautious user does."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1)
    for step in range(steps):
        net.bad = step in bad
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).square().mean()
        if levels is not None:
            levels.append(level_now(scanner))
        loss.backward()
        if torch.isfinite(loss) or not careful:
            optimizer.step()
        else:
            scanner.step()
    scanner.flush()


def level_now(scanner):
    """What the core observes, not what the scanner believes."""
    before = scanner.stats["scans"]
    torch.ones(3).exp()
    return "op" if scanner.stats["scans"] > before else "module"


def errors(scanner):
    return [(e.step, e.op, e.module) for e in scanner.events if e.severity == "error"]


def test_a_second_anomaly_gets_its_op_and_line():
    net, levels = Net(), []
    with nanscan.enable(net, on_anomaly="record") as scanner:
        train(scanner, net, 6, bad={2, 3}, levels=levels)
        assert errors(scanner) == [(2, None, ""), (3, "aten::log", "")]
        assert "# the line of the fault" in scanner.events[1].source
        assert levels == ["module", "module", "module", "op", "module", "module"], "back once there is a verdict"
        assert scanner.first.step == 2
        (note,) = scanner.coverage["notes"]
        assert note.startswith("op level (step 3) after the anomaly of step 2 names aten::log at ")
        assert " ".join(note.split()) in " ".join(scanner.report().split())


def test_three_steps_at_most():
    net, levels = Net(), []
    with nanscan.enable(net, on_anomaly="record") as scanner:
        train(scanner, net, 8, bad={1}, levels=levels)
        assert levels == ["module"] * 2 + ["op"] * 3 + ["module"] * 3
        assert scanner.coverage["notes"] == ["op level (steps 2 to 4) after the anomaly of step 1 found nothing bad"]


def test_an_anomaly_is_followed_up_three_times_at_most():
    net, levels = Net(), []
    with nanscan.enable(net, on_anomaly="record") as scanner:
        train(scanner, net, 30, bad={1, 6, 11, 16, 21}, levels=levels)
        assert levels.count("op") == 9


def test_parameters_that_stay_bad_are_told_of_once():
    net = Net()
    with nanscan.enable(net, on_anomaly="record") as scanner:
        train(scanner, net, 9, bad={2}, careful=False)
        assert errors(scanner) == [(2, None, "")], "neither level repeats what the other has told"
        (note,) = scanner.coverage["notes"]
        assert note.startswith("op level (steps 3 to 5)")
        assert "what the parameters hold by now" in note


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_optimizer_states_that_are_bad_by_then_are_no_news(make):
    net = Net()
    optimizer = make(net.parameters(), lr=0.1)
    with nanscan.enable(net, on_anomaly="record") as scanner:
        for step in range(8):
            net.bad = step == 2
            optimizer.zero_grad()
            net(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
        scanner.flush()
        assert errors(scanner) == [(2, None, "")]
        (note,) = scanner.coverage["notes"]
        assert "only what the parameters hold by now" in note


def test_escalate_can_be_switched_off():
    net, levels = Net(), []
    with nanscan.enable(net, on_anomaly="record", escalate=False) as scanner:
        train(scanner, net, 5, bad={1, 2}, levels=levels)
        assert levels == ["module"] * 5
        assert scanner.coverage["notes"] == []
    with pytest.raises(TypeError, match="escalate=1 is of type int; give True or False"):
        nanscan.enable(net, escalate=1)


def test_healthy_training_stays_at_module_level():
    net, levels = Net(), []
    with nanscan.enable(net) as scanner:
        train(scanner, net, 5, levels=levels)
        assert levels == ["module"] * 5


def test_unscanned_steps_do_not_count():
    net, levels = Net(), []
    with nanscan.enable(net, on_anomaly="record", every=2) as scanner:
        train(scanner, net, 12, bad={2}, levels=levels)
        assert scanner.coverage["notes"] == ["op level (steps 4 to 8) after the anomaly of step 2 found nothing bad"]


@pytest.mark.parametrize("own", ["module", "op"])
def test_a_schedule_names_the_level_of_a_step(own):
    net, levels = Net(), []
    plan = ["module", "op", False, "op", "module", True]
    with nanscan.enable(net, level=own, on_anomaly="record", schedule=lambda step: plan[step]) as scanner:
        train(scanner, net, 6, bad={3}, levels=levels)
        assert levels == ["module", "op", "module", "op", "module", own]
        assert errors(scanner) == [(3, "aten::log", "")]


def test_an_unknown_level_is_refused_by_name():
    with pytest.raises(ValueError, match=r"schedule\(0\) returned 'deep'; return a bool or one of 'module', 'op'"):
        nanscan.enable(Net(), schedule=lambda step: "deep")


def test_ops_are_observed_for_another_scanner():
    net, levels = Net(), []
    with nanscan.trace(on_anomaly="record"), nanscan.enable(net, on_anomaly="record") as scanner:
        train(scanner, net, 5, bad={1, 2}, levels=levels)
        assert [event.op for event in scanner.events if event.severity == "error"] == [None, None]
        (note,) = scanner.coverage["notes"]
        assert note.startswith("stays at module level: level='op': another open scanner observes ops already")


def test_a_schedule_whose_op_level_cannot_be_had_warns_once():
    net = Net()
    with nanscan.trace(on_anomaly="record"):
        with pytest.raises(nanscan.NanscanError, match="another open scanner"):
            nanscan.enable(net, schedule=lambda step: "op")
        scanner = nanscan.enable(net, on_anomaly="record", schedule=lambda step: "op" if step else "module")
        with pytest.warns(NanscanWarning, match="stays at module level") as warned:
            train(scanner, net, 5)
        assert len(warned) == 1
        assert scanner.coverage["failure"] is None


def test_the_log_keeps_the_note(tmp_path, capsys):
    from nanscan.cli.main import main

    net = Net()
    with nanscan.enable(net, on_anomaly="record", dir=tmp_path) as scanner:
        train(scanner, net, 6, bad={2, 3})
    main(["report", str(tmp_path)])
    assert "op level (step 3) after the anomaly of step 2 names aten::log" in capsys.readouterr().out


def test_training_is_the_same_to_the_bit():
    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        net = Net()
        if watched:
            with nanscan.enable(net, on_anomaly="record") as scanner:
                train(scanner, net, 12, bad={2, 3, 8})
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            torch.manual_seed(1)
            for step in range(12):
                net.bad = step in {2, 3, 8}
                optimizer.zero_grad()
                loss = net(torch.randn(3, 4)).square().mean()
                loss.backward()
                if torch.isfinite(loss):
                    optimizer.step()
        results.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
