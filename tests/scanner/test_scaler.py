"""Loss scaling: skipped steps are expected and silent, a NaN of the forward is not, raising waits for the verdict."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.amp import GradScaler

import nanscan


class Scaled:
    """A training under a GradScaler; step(overflow=True) makes the scaled gradient overflow, as fp16 does."""

    def __init__(self, training, **options):
        self.net, self.optimizer = training.net, training.optimizer
        self.scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6, **options)

    def step(self, overflow=False, bad=None):
        self.net.trap.bad = bad
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(3, 4)).sum()
        if overflow:
            loss = loss * 3e38
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.fixture
def scaled(training):
    return Scaled(training)


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_skip_is_expected_and_silent(scaled, quiet):
    scanner = nanscan.enable(scaled.net)
    for i in range(6):
        scaled.step(overflow=i in (0, 3))
    scanner.close()
    assert scaler_skips(scaled) == 2
    assert scanner.first is None
    assert scanner.stats["skips"] == 2
    assert {e.severity for e in scanner.events} == {"info"}
    assert any("expected loss-scale skip" in text for e in scanner.events for text in e.evidence)
    assert "2 loss-scale skips (expected)" in scanner.report()


def scaler_skips(scaled):
    scale, skips = scaled.scaler.get_scale(), 0
    while scale < 2.0**10:
        scale, skips = scale * 2, skips + 1
    return skips


def test_update_ends_a_step_that_was_skipped(scaled):
    scanner = nanscan.enable(scaled.net, on_anomaly="record")
    for i in range(5):
        scaled.step(overflow=i < 3)
    assert scanner.stats["steps"] == 5
    assert scanner.stats["batches"] == 5


def test_a_nan_of_the_forward_is_an_error(scaled):
    # GIVEN a step that the scaler skips because of it: the scale is not to blame
    scanner = nanscan.enable(scaled.net, on_anomaly="record")
    for i in range(3):
        scaled.step(bad="forward" if i == 1 else None)
    assert (scanner.first.severity, scanner.first.phase, scanner.first.module) == ("error", "forward", "trap")
    assert scanner.first.step == 1


@pytest.mark.parametrize("policy", ["raise", "stop"])
def test_a_skip_raises_nothing(scaled, policy):
    scanner = nanscan.enable(scaled.net, on_anomaly=policy)
    for i in range(5):
        scaled.step(overflow=i in (0, 2))
    scanner.step()
    assert scanner.first is None


def test_raise_for_a_bad_gradient_waits_for_the_verdict(scaled):
    # GIVEN a gradient that is bad whatever the scale is
    nanscan.enable(scaled.net, on_anomaly="raise")
    raised_in = []
    for i in range(30):
        try:
            scaled.step(bad="backward" if i >= 2 else None)
        except nanscan.NonFiniteError as err:
            raised_in.append((i, err.event.phase, err.event.module))
            break
    # THEN it is taken for an overflow of the scale at first, and told when lowering the scale has not helped
    assert raised_in
    step, phase, module = raised_in[0]
    assert step > 2 + 10
    assert (phase, module) == ("backward", "trap")


def test_nothing_is_raised_out_of_backward_under_a_scaler(scaled):
    nanscan.enable(scaled.net, on_anomaly="raise")
    scaled.net.trap.bad = "backward"
    scaled.scaler.scale(scaled.net(torch.ones(3, 4)).sum()).backward()


def test_unscaling_and_clipping(scaled):
    scanner = nanscan.enable(scaled.net, on_anomaly="record")
    for i in range(4):
        scaled.optimizer.zero_grad()
        loss = scaled.net(torch.ones(3, 4)).sum() * (3e38 if i == 1 else 1.0)
        scaled.scaler.scale(loss).backward()
        scaled.scaler.unscale_(scaled.optimizer)
        torch.nn.utils.clip_grad_norm_(scaled.net.parameters(), 1.0)
        scaled.scaler.step(scaled.optimizer)
        scaled.scaler.update()
    scanner.close()
    assert scanner.stats["steps"] == 4
    assert scanner.first is None
    assert scanner.stats["skips"] == 1


def test_gradient_accumulation_under_a_scaler(scaled, quiet):
    scanner = nanscan.enable(scaled.net)
    for i in range(8):
        loss = scaled.net(torch.ones(3, 4)).sum() * (3e38 if i == 2 else 1.0)
        scaled.scaler.scale(loss).backward()
        if i % 2:
            scaled.scaler.step(scaled.optimizer)
            scaled.scaler.update()
            scaled.optimizer.zero_grad()
    scanner.close()
    assert (scanner.stats["steps"], scanner.stats["batches"], scanner.stats["skips"]) == (4, 8, 1)
    assert scanner.first is None


def test_a_fused_optimizer_skips_by_itself(make_training, make_net, quiet):
    # GIVEN one that is always called, with the scaler's verdict in its hands
    training = make_training(make_net(), optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True))
    scaled = Scaled(training)
    scanner = nanscan.enable(scaled.net)
    for i in range(4):
        scaled.step(overflow=i == 1)
    scanner.close()
    assert scanner.first is None
    assert scanner.stats["skips"] == 1
    assert scanner.stats["steps"] == 4


def test_a_disabled_scaler_is_none(training):
    scaled = Scaled(training, enabled=False)
    scanner = nanscan.enable(scaled.net, on_anomaly="record")
    for i in range(3):
        scaled.step(bad="backward" if i == 1 else None)
    assert scanner.first.severity == "error"
    assert (scanner.first.step, scanner.first.phase) == (1, "backward")
    assert scanner.stats["skips"] == 0


def test_its_methods_are_put_back(training):
    names = ("scale", "step", "update")
    before = [vars(GradScaler)[name] for name in names]
    first = nanscan.enable(training.net)
    assert [vars(GradScaler)[name] for name in names] != before
    second = nanscan.enable(torch.nn.Linear(2, 2))
    first.close()
    assert [vars(GradScaler)[name] for name in names] != before, "the other scanner is still open"
    second.close()
    assert [vars(GradScaler)[name] for name in names] == before
