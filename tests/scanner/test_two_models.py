"""Several models: a scanner each, one module never watched twice, optimizers told apart."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import nanscan


def test_the_same_model_twice_is_refused_by_name(make_net):
    net = make_net()
    nanscan.enable(net)
    with pytest.raises(nanscan.NanscanError, match=r"enable\(model=Net\): the model is already.*close\(\) that one"):
        nanscan.enable(net)


def test_a_submodule_of_a_watched_model_is_refused(make_net):
    net = make_net()
    nanscan.enable(net)
    with pytest.raises(nanscan.NanscanError, match=re.escape("enable(model=Linear): the model is already watched")):
        nanscan.enable(net.b)


def test_a_model_around_a_watched_one_is_refused(make_net, hooks_of):
    net = make_net()
    around = nn.Sequential(nn.Linear(4, 4), net)
    nanscan.enable(net)
    before = hooks_of(around)
    with pytest.raises(nanscan.NanscanError, match=re.escape("enable(model=Sequential): its module '1' is already")):
        nanscan.enable(around)
    assert hooks_of(around) == before


def test_a_model_that_shares_a_module_is_refused():
    shared = nn.Embedding(10, 4)
    first, second = nn.Sequential(shared, nn.Linear(4, 2)), nn.Sequential(nn.Identity(), shared)
    nanscan.enable(first)
    with pytest.raises(nanscan.NanscanError, match="its module '1'"):
        nanscan.enable(second)


def test_after_a_refusal_the_first_scanner_goes_on(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    with pytest.raises(nanscan.NanscanError):
        nanscan.enable(training.net)
    training.run(3, at={1: "forward"})
    assert scanner.stats["steps"] == 3
    assert scanner.first.module == "trap"


def test_close_then_enable_again(training, hooks_of):
    for bad in ("forward", "backward", None):
        scanner = nanscan.enable(training.net, on_anomaly="record")
        training.net.load_state_dict({k: torch.zeros_like(v) + 0.1 for k, v in training.net.state_dict().items()})
        training.step(bad)
        training.step()
        scanner.close()
        assert hooks_of(training.net) == []
        assert scanner.stats["batches"] == 2
        assert (scanner.first is None) == (bad is None)


def test_two_models_in_one_process(make_training, make_net):
    one, two = (make_training(make_net()) for _ in range(2))
    first, second = (nanscan.enable(t.net, on_anomaly="record") for t in (one, two))
    one.run(3, at={2: "forward"})
    two.run(5, at={1: "backward"})
    assert (first.stats["steps"], second.stats["steps"]) == (3, 5)
    assert [(e.step, e.phase) for e in first.events] == [(2, "forward")]
    assert [(e.step, e.phase) for e in second.events] == [(1, "backward")]


class Gan:
    """Two models, two optimizers: the discriminator is updated twice for each update of the generator."""

    def __init__(self, make_net):
        self.g, self.d = make_net(), nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        self.opt_g, self.opt_d = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (self.g, self.d))

    def round(self):
        for _ in range(2):
            self.opt_d.zero_grad()
            fake = self.g(torch.randn(3, 4)).detach()
            (self.d(fake) - self.d(torch.randn(3, 2))).mean().backward()
            self.opt_d.step()
        self.opt_g.zero_grad()
        self.d(self.g(torch.randn(3, 4))).mean().backward()
        self.opt_g.step()


def test_two_scanners_tell_their_optimizers_apart(make_net):
    gan = Gan(make_net)
    of_g, of_d = (nanscan.enable(m, on_anomaly="record") for m in (gan.g, gan.d))
    for _ in range(3):
        gan.round()
    assert of_g.stats["steps"] == 3, "the discriminator's updates are no steps of the generator"
    # The seventh has begun: the generator's loss runs the discriminator forward after its last update.
    assert of_d.stats["steps"] == 7, "the generator's updates are no steps of the discriminator"
    assert of_g.stats["batches"] == 3 * 3
    assert of_g.events == of_d.events == ()


def test_an_update_that_goes_wrong_is_told_by_its_own_scanner(make_net):
    gan = Gan(make_net)
    of_g, of_d = (nanscan.enable(m, on_anomaly="record") for m in (gan.g, gan.d))
    gan.round()
    gan.opt_d.param_groups[0]["lr"] = float("inf")
    gan.round()
    of_d.flush()
    assert (of_d.first.phase, of_d.first.step) == ("optimizer", 2)
    assert of_g.first is None or of_g.first.phase != "optimizer"


def test_one_scanner_over_both_counts_every_update(make_net):
    gan = Gan(make_net)
    both = nn.ModuleDict({"g": gan.g, "d": gan.d})
    scanner = nanscan.enable(both, on_anomaly="record", clock="manual")
    for i in range(3):
        gan.g.trap.bad = "forward" if i == 1 else None
        gan.round()
        scanner.step()
    assert scanner.stats["steps"] == 3
    assert (scanner.first.step, scanner.first.module) == (1, "g.trap")


def test_allowances_count_for_the_scanner_that_is_open(make_net):
    # GIVEN an allowance that applied while an earlier scanner was open
    nanscan.allow("trap")
    for fire in (True, False):
        net = make_net()
        net.trap.bad = "forward" if fire else None
        scanner = nanscan.enable(net, on_anomaly="record")
        with torch.no_grad():
            net(torch.ones(1, 4))
        scanner.close()
        # THEN a later scanner's report does not count it once more
        assert scanner.stats["allowed"] == int(fire)
        assert ("allowed" in scanner.report()) == fire
