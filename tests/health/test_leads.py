"""How long before the first non-finite value the growth watch speaks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn


def diverging(slow):
    """T7: SGD's learning rate goes wrong from step 25 on, in a deep net (a ramp) or a linear one (a jump)."""
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    y = x[:, :1] * 2 + x[:, 1:2] ** 2
    if slow:
        model = nn.Sequential(nn.Linear(64, 1))
    else:
        hidden = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.LeakyReLU(0.2))]
        model = nn.Sequential(*hidden, nn.Linear(64, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    first_bad = []

    def step(i):
        if i >= 25:
            opt.param_groups[0]["lr"] = 0.35 if slow else 0.02 * 1.12 ** (i - 25)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if not math.isfinite(loss.item()) or not all(torch.isfinite(p.grad).all() for p in model.parameters()):
            first_bad.append(i)
            return False
        return True

    return model, step, first_bad


@pytest.mark.parametrize(("slow", "lead", "died"), [(False, 7, 57), (True, 85, 131)], ids=["fast", "slow"])
def test_t7_is_announced(watch_training, slow, lead, died):
    model, step, first_bad = diverging(slow)
    findings = watch_training(model, step, 200)
    assert first_bad == [died]
    assert len(findings) == 1, "one alarm for one explosion"
    assert findings[0].step >= 25, "nothing is wrong before step 25"
    assert died - findings[0].step >= lead


def test_momentum_that_runs_away_under_noise(watch_training):
    """Minibatches, and a step size that is too large from step 60 on: a surge, long before the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.99)

    def step(i):
        opt.param_groups[0]["lr"] = 0.001 if i < 60 else 0.2
        x = torch.randn(16, 20)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 2 + x[:, 1:2] ** 2)
        loss.backward()
        opt.step()
        return math.isfinite(loss.item())

    findings = watch_training(model, step, 110)
    assert [f.rule for f in findings] == ["surge"]
    assert 60 <= findings[0].step <= 70
