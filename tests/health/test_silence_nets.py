"""Ordinary trainings of the usual architectures: convolutions with BatchNorm, LSTM, GPT. The growth watch stays silent.

T8 and T8b (the last two) are the healthy GPT with an additive -inf mask, made inside it or passed to it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        nn.init.zeros_(self.body[-1].weight)

    def forward(self, x):
        return F.relu(x + self.body(x))


def convolutions(lr):
    """lr: step -> learning rate."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    y = torch.randint(0, 5, (1024,))
    x = torch.randn(1024, 1, 12, 12)
    for k in range(5):
        x[y == k, :, 2 * k : 2 * k + 2] += 1
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)

    def step(i):
        opt.param_groups[0]["lr"] = lr(i)
        rows = torch.randint(0, 1024, (32,))
        opt.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        opt.step()

    return model, step


class Recurrent(nn.Module):
    def __init__(self, vocab=20, d=32):
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(vocab, d),
            nn.LSTM(d, d, 2, batch_first=True),
            nn.Linear(d, vocab),
        )

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (s.view(b, t, self.heads, -1).transpose(1, 2) for s in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        scores = scores + torch.zeros(t, t).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2, self.attn = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Gpt(nn.Module):
    def __init__(self, vocab=20, d=32, layers=2, heads=2, length=24):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tok(ids) + self.pos(torch.arange(ids.shape[1])))))


def count_up(model, opt, lr, clip=None, length=lambda i: 24):
    """Language modelling of modular arithmetic progressions."""
    ids = (torch.randint(0, 20, (256, 1)) + torch.randint(1, 4, (256, 1)) * torch.arange(25)) % 20

    def step(i):
        opt.param_groups[0]["lr"] = lr(i)
        rows = ids[torch.randint(0, 256, (16,)), : length(i) + 1]
        opt.zero_grad()
        F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()

    return model, step


def convolutions_with_drops():
    return convolutions(lambda i: 0.2 * min(1, (i + 1) / 100) * 0.1 ** (i // 150))


def convolutions_with_warm_restarts():
    return convolutions(lambda i: 0.1 * (1 + math.cos(math.pi * (i % 80) / 80)) + 1e-4)


def lstm_clipped():
    model = Recurrent()
    return count_up(model, torch.optim.Adam(model.parameters()), lambda i: 3e-3, clip=1.0)


def lstm_with_growing_length():
    model = Recurrent()
    return count_up(model, torch.optim.Adam(model.parameters()), lambda i: 3e-3, length=lambda i: min(24, 2 + i // 15))


def gpt_with_warm_restarts():
    model = Gpt()
    cosine = lambda i: 1 + math.cos(math.pi * (i % 100) / 100)  # noqa: E731
    return count_up(model, torch.optim.AdamW(model.parameters()), lambda i: min(1, (i + 1) / 20) * 1.5e-3 * cosine(i))


def gpt_of_zero_initialised_branches():
    model = Gpt(layers=3)
    for block in model.blocks:
        for linear in (block.attn.proj, block.mlp[2]):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
    nn.init.zeros_(model.head.weight)
    return count_up(model, torch.optim.AdamW(model.parameters()), lambda i: 1e-3 * min(1, (i + 1) / 100))


def memorise(model, vocab, batch, length, *more):
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    ids = torch.randint(0, vocab, (batch, length))

    def step(i):
        opt.zero_grad()
        F.cross_entropy(model(ids, *more).flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
        opt.step()

    return model, step


def t8_small():
    return memorise(Gpt(128, 64, 4, 4, 32), 128, 4, 32)


def t8():
    return memorise(Gpt(512, 256, 4, 4, 128), 512, 8, 128)


class Masked(nn.Module):
    def __init__(self, d=64, vocab=128):
        super().__init__()
        self.tok, self.head = nn.Embedding(vocab, d), nn.Linear(d, vocab)
        layers = [nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, ids, bias):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        return self.head(x)


def t8b():
    return memorise(Masked(), 128, 4, 32, torch.full((32, 32), -math.inf).triu(1))


TRAININGS = [
    pytest.param(convolutions_with_drops, 320, marks=pytest.mark.slow),
    pytest.param(convolutions_with_warm_restarts, 320, marks=pytest.mark.slow),
    pytest.param(lstm_clipped, 300),
    pytest.param(lstm_with_growing_length, 400, marks=pytest.mark.slow),
    pytest.param(gpt_with_warm_restarts, 400, marks=pytest.mark.slow),
    pytest.param(gpt_of_zero_initialised_branches, 300, marks=pytest.mark.slow),
    pytest.param(t8_small, 200),
    pytest.param(t8b, 200),
    pytest.param(t8, 200, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build", "steps"), TRAININGS)
def test_no_alarm(watch_training, build, steps):
    torch.manual_seed(0)
    models, step = build()
    assert watch_training(models, step, steps) == []
