"""A rule only speaks of a birth: nothing healthy, however full of zeros and -Inf, gets an alarm or a cause."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


def test_the_facts_are_looked_up_only_when_something_is_born() -> None:
    """The cost on healthy steps is counted: no record at all, so no part and no saved value was looked at."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        scanner.flush()
        before = scanner.stats["records"]
        optimizer.zero_grad()
        (model(torch.randn(4, 8)).square().mean() / 0.0).backward()
        assert scanner.first is not None
        assert scanner.first.cause == "division by zero"
        assert scanner.stats["records"] - before > 0
        healthy = before / 5
    assert healthy < 20, "records of a healthy step at op level: parameters, gradients, the root"


class Attention(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(16, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.masked = masked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        if self.masked:
            scores = scores + torch.full((ids.shape[1], ids.shape[1]), -math.inf).triu(1)
        return self.out(x + scores.softmax(-1) @ v)


class Guarded(nn.Module):
    """Zeros, logs, square roots and divisions that are all guarded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x).relu()
        positive = torch.where(h > 0, h, torch.ones_like(h))
        logs = torch.where(h > 0, positive.log(), torch.zeros_like(h))
        return logs.sum(-1) / h.sum(-1).clamp_min(1e-3) + (h.square().sum(-1) + 1e-6).sqrt()


def attention(masked: bool):
    model = Attention(masked)
    ids = torch.randint(0, 16, (4, 8))
    return model, lambda: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def guarded():
    model = Guarded()
    x = torch.randn(16, 6)
    return model, lambda: model(x).square().mean()


def convolution():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    x, target = torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))
    model(x)
    return model, lambda: F.cross_entropy(model(x), target)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: attention(False), id="attention"),
        pytest.param(lambda: attention(True), id="masked attention"),
        pytest.param(guarded, id="guarded"),
        pytest.param(convolution, id="convolution"),
    ],
)
def test_300_steps_of_a_model(build) -> None:
    torch.manual_seed(0)
    model, loss_of = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        for _ in range(300):
            optimizer.zero_grad()
            loss_of().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert [event for event in scanner.events if event.severity != "info"] == []
    assert [event.rule for event in scanner.events if event.rule is not None] == []
