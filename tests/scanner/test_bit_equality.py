"""The tool changes no bit: the same loss, gradients and parameters over 50 steps, with it and without."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanscan


class GPT(nn.Module):
    """Small, and with what real ones have: tied embeddings, causal attention, residuals, dropout."""

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.drop(self.proj(y.transpose(1, 2).flatten(2)))
            return x + self.drop(self.mlp(self.ln2(x)))

    def __init__(self, vocabulary=19, d=16, length=8):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList([GPT.Block(d) for _ in range(2)])
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))

    def loss(self):
        ids = torch.randint(0, 19, (4, 9))
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def loss(self):
        return F.cross_entropy(self(torch.randn(6, 1, 8, 8)), torch.randint(0, 3, (6,)))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, num_layers=2, dropout=0.1), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).mean()

    def loss(self):
        return self(torch.randn(5, 3, 4)).square()


class Straight(torch.autograd.Function):
    """Rounds, and hands the gradient on unchanged: the very same tensor."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.b(Straight.apply(self.a(x)))

    def loss(self):
        return self(torch.randn(6, 4)).square().mean()


STEPS = 50


def train(make, watch, optimizer=torch.optim.AdamW, set_to_none=True):
    """Every number that training makes, a list per step."""
    torch.manual_seed(3)
    model = make()
    scanner = nanscan.enable(model, on_anomaly="raise") if watch else None
    updates = optimizer(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(STEPS):
        updates.zero_grad(set_to_none=set_to_none)
        loss = model.loss()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        updates.step()
        seen.append([loss.detach().clone(), *gradients, *(v.clone() for v in model.state_dict().values())])
    return seen, scanner


def assert_same(make, **options):
    free, _ = train(make, watch=False, **options)
    ours, scanner = train(make, watch=True, **options)
    assert scanner.stats["steps"] == STEPS
    assert scanner.stats["scans"] > 5 * STEPS
    assert scanner.stats["dropped"] == 0
    assert scanner.first is None
    for step, (a, b) in enumerate(zip(ours, free, strict=True)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert torch.equal(x, y), f"step {step}, tensor {i}: {x.flatten()[:4]} and {y.flatten()[:4]}"


@pytest.mark.parametrize("make", [GPT, CNN, LSTM, Custom])
def test_training_is_the_same_to_the_bit(make):
    assert_same(make)


@pytest.mark.parametrize("make", [GPT, CNN])
def test_with_gradients_that_are_kept_and_zeroed(make):
    assert_same(make, optimizer=torch.optim.SGD, set_to_none=False)


def test_in_double_and_half_precision():
    for dtype in (torch.float64, torch.bfloat16):
        assert_same(lambda dtype=dtype: Cast(dtype))


class Cast(Custom):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.to(dtype)

    def loss(self):
        return self(torch.randn(6, 4, dtype=self.dtype)).square().mean()


def test_two_gradients_of_a_sum_stay_two_tensors():
    # GIVEN a and b whose gradients are equal: the engine hands one tensor to both, and copies it for the second
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.w = (nn.Parameter(torch.randn(3)) for _ in range(3))

        def forward(self):
            return ((self.a + self.b) * self.w).sum()

    shared = []
    for watch in (False, True):
        model = Sum()
        if watch:
            nanscan.enable(model)
        model().backward()
        shared.append(model.a.grad.data_ptr() == model.b.grad.data_ptr())
        model.a.grad.zero_()
        assert torch.equal(model.b.grad, model.w)
    assert shared == [False, False]


def test_anomalies_change_no_bit_either(make_training, make_net):
    # GIVEN a NaN gradient that a hand-made guard replaces
    results = []
    for watch in (False, True):
        torch.manual_seed(0)
        training = make_training(make_net(), lr=0.1)
        if watch:
            nanscan.enable(training.net, on_anomaly="record")
        for step in range(10):
            training.net.trap.bad = "backward" if step % 3 == 1 else None
            training.optimizer.zero_grad()
            training.net(torch.ones(3, 4)).square().sum().backward()
            for p in training.net.parameters():
                p.grad.nan_to_num_(0.0)
            training.optimizer.step()
        results.append([p.detach().clone() for p in training.net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
