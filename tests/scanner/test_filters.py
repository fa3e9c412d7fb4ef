"""skip, include and the default: which modules are hooked, by counting, and what that does to the verdict."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nanscan


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.fc(self.norm(x)))


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.ModuleList([Block(), Block()])[0], Block())


def watched(scanner):
    return set(scanner.coverage["modules"])


INNER = {"1.norm", "1.fc", "2.norm", "2.fc"}


def test_everything_but_dropout_by_default(model):
    scanner = nanscan.enable(model)
    assert watched(scanner) == {"", "0", "1", "2", *INNER}
    assert scanner.coverage["skipped"] == {"1.drop": "Dropout", "2.drop": "Dropout"}


ROWS = [
    pytest.param({"skip": "1.*"}, {"", "0", "1", "2", "2.norm", "2.fc"}, id="skip-a-glob"),
    pytest.param({"skip": nn.Linear}, {"", "1", "2", "1.norm", "2.norm"}, id="skip-a-class"),
    pytest.param({"skip": ["*.norm", nn.Linear]}, {"", "1", "2"}, id="skip-both-sorts"),
    pytest.param({"skip": (Block,)}, {"", "0", *INNER}, id="skip-a-block-not-its-inside"),
    pytest.param({"skip": "*"}, {""}, id="skip-all-but-the-root"),
    pytest.param({"include": nn.Linear}, {"", "0", "1.fc", "2.fc"}, id="include-a-class"),
    pytest.param({"include": ["2", "2.*"]}, {"", "2", "2.norm", "2.fc", "2.drop"}, id="include-dropout-by-name"),
    pytest.param({"include": nn.Dropout}, {"", "1.drop", "2.drop"}, id="include-dropout-by-class"),
    pytest.param({"include": nn.Linear, "skip": "1.*"}, {"", "0", "2.fc"}, id="skip-wins-over-include"),
    pytest.param({"include": []}, {""}, id="include-nothing"),
]


@pytest.mark.parametrize(("filters", "wanted"), ROWS)
def test_which_modules_are_watched(model, filters, wanted):
    scanner = nanscan.enable(model, **filters)
    assert watched(scanner) == wanted
    everything = {name for name, m in model.named_modules() if not isinstance(m, nn.ModuleList)}
    assert set(scanner.coverage["skipped"]) == everything - wanted


def test_fewer_modules_are_fewer_scans(model):
    counts = []
    for skip in ((), nn.LayerNorm, "*"):
        scanner = nanscan.enable(model, skip=skip, on_anomaly="record")
        before = scanner.stats["scans"]
        with torch.no_grad():
            model(torch.randn(2, 4))
        counts.append(scanner.stats["scans"] - before)
        scanner.close()
    # a block returns a tensor of its own; a Sequential returns its last block's
    assert counts == [1 + 7, 1 + 5, 1 + 1]


def test_parameters_of_skipped_modules_are_watched_all_the_same(model):
    scanner = nanscan.enable(model, skip="*", on_anomaly="record")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    assert len(scanner.coverage["parameters"]) == len(list(model.parameters()))
    model(torch.ones(2, 4)).sum().backward()
    model[2].fc.weight.grad.fill_(float("nan"))
    optimizer.step()
    assert scanner.first.tensor == "2.fc.weight"


def test_a_skipped_origin_is_named_by_what_is_around_it(make_net):
    net = make_net()
    net.trap.bad = "forward"
    scanner = nanscan.enable(net, skip="trap", on_anomaly="record")
    with torch.no_grad():
        net(torch.ones(1, 4))
    assert scanner.first.module == ""
    assert scanner.first.reader == "b"


def test_dropout_makes_no_event(model):
    scanner = nanscan.enable(model, on_anomaly="raise")
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
    assert scanner.first is None
