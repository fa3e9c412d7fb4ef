"""Ordinary trainings of 300 steps and more in which nothing is wrong: the growth watch must not say a word.

Each builder returns (models, step_fn). Small, but with the habits that tempt a growth detector: warm-up and warm
restarts, gradients that begin at zero, heavy tails, loss scaling, rare embeddings, uneven batches, two optimizers.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

TRAININGS = {}


def training(steps=300):
    def register(build):
        TRAININGS[build.__name__] = pytest.param(build, steps, id=build.__name__)
        return build

    return register


def mlp(d=20, width=64, out=5, depth=2):
    layers = [nn.Linear(d, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, out))


def task(n=2048, d=20, classes=5, noise=0.5):
    x = torch.randn(n, d)
    return x, (x @ torch.randn(d, classes) + noise * torch.randn(n, classes)).argmax(1)


def draw(x, y, size):
    rows = torch.randint(0, len(x), (size,))
    return x[rows], y[rows]


def loop(model, opt, loss_of, lr=None, clip=None, accumulate=1):
    """(model, step_fn) of the usual loop. lr: factor on the given rate by step."""
    base = opt.param_groups[0]["lr"]

    def step(i):
        for group in opt.param_groups:
            group["lr"] = base * (lr(i) if lr else 1.0)
        opt.zero_grad()
        for _ in range(accumulate):
            (loss_of(i) / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()

    return model, step


def classify(model, opt, size=lambda i: 32, **kwargs):
    x, y = task()
    reduction = kwargs.pop("reduction", "mean")

    def loss_of(i):
        a, b = draw(x, y, size(i))
        return F.cross_entropy(model(a), b, reduction=reduction)

    return loop(model, opt, loss_of, **kwargs)


@training(400)
def adam_with_warm_up():
    model = mlp()
    return classify(model, torch.optim.Adam(model.parameters(), 3e-3), lr=lambda i: min(1, (i + 1) / 50))


@training(400)
def sgd_with_sharp_restarts():
    model = mlp(depth=3)
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return classify(model, opt, lr=lambda i: 1 if (i // 60) % 2 == 0 else 0.01)


@training(400)
def zero_initialised_head():
    model = mlp(depth=3)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return classify(model, torch.optim.SGD(model.parameters(), 0.05), lr=lambda i: min(1, (i + 1) / 200))


class LowRank(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Linear(linear.in_features, rank, bias=False)
        self.b = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.linear(x) + self.b(self.a(x))


@training()
def low_rank_adapters():
    model = mlp(depth=3)
    for i in (0, 2, 4):
        model[i] = LowRank(model[i])
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    return classify(model, opt, lr=lambda i: min(1, (i + 1) / 100))


@training()
def unfrozen_half_way():
    model = mlp(depth=4)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    model[:6].requires_grad_(False)
    _, inner = classify(model, opt)

    def step(i):
        if i == 150:
            model.requires_grad_(True)
        inner(i)

    return model, step


@training()
def gradient_accumulation():
    model = mlp()
    return classify(model, torch.optim.AdamW(model.parameters(), 1e-3), size=lambda i: 16, accumulate=4)


@training()
def batches_of_1_to_256_summed():
    model = mlp()
    size = lambda i: int(2 ** (8 * torch.rand(1)))  # noqa: E731
    return classify(model, torch.optim.Adam(model.parameters(), 1e-3), size=size, reduction="sum")


@training(400)
def batch_doubled_every_60_steps():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    return classify(model, opt, size=lambda i: 8 * 2 ** (i // 60), reduction="sum")


@training(400)
def last_batch_of_an_epoch_is_one_sample():
    model = mlp()
    return classify(model, torch.optim.Adam(model.parameters(), 3e-3), size=lambda i: 1 if i % 20 == 19 else 128)


def scaled(growth_interval, init_scale):
    def build():
        model, (x, y) = mlp(), task()
        opt = torch.optim.Adam(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)

        def step(i):
            a, b = draw(x, y, 32)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(a)
            scaler.scale(F.cross_entropy(out.float(), b)).backward()
            scaler.step(opt)
            scaler.update()

        return model, step

    return build


for interval, scale in ((1, 2.0**4), (5, 2.0**8), (20, 2.0**8), (100, 2.0**22)):
    build = scaled(interval, scale)
    build.__name__ = f"loss_scale_doubled_every_{interval}_steps"
    training(300)(build)


@training(400)
def two_optimizers_in_turn():
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    og = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
    oc = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))

    def step(i):
        angle = torch.rand(64) * 2 * math.pi
        real = torch.stack([angle.cos(), angle.sin()], 1) * 2
        oc.zero_grad()
        fake = generator(torch.randn(64, 8)).detach()
        (F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()).backward()
        oc.step()
        og.zero_grad()
        F.softplus(-critic(generator(torch.randn(64, 8)))).mean().backward()
        og.step()

    return (generator, critic), step


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items, self.head = nn.Embedding(500, 16), nn.Embedding(2000, 16), mlp(32, 32, 1)

    def forward(self, users, items):
        return self.head(torch.cat([self.users(users), self.items(items)], -1))[:, 0]


@training()
def sparse_embeddings():
    model, taste = Recommender(), torch.randn(2000)

    def loss_of(i):
        items = (2000 * torch.rand(32) ** 4).long()
        return F.mse_loss(model(torch.randint(0, 500, (32,)), items), taste[items] + 0.1 * torch.randn(32))

    return loop(model, torch.optim.Adam(model.parameters(), 3e-3), loss_of)


class RareFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.rare, self.head = nn.Embedding(10, 8), mlp(28, 32, 5)

    def forward(self, x, k):
        return self.head(torch.cat([x, self.rare(k) * (k > 0)[:, None]], -1))


@training(400)
def rare_embedding_with_zero_gradients():
    model, (x, y) = RareFeature(), task()

    def loss_of(i):
        a, b = draw(x, y, 16)
        return F.cross_entropy(model(a, (torch.rand(16) < 0.003) * torch.randint(1, 10, (16,))), b)

    return loop(model, torch.optim.Adam(model.parameters(), 2e-3), loss_of)


def policy(reward, n):
    model = mlp()

    def loss_of(i):
        logp = F.log_softmax(model(torch.randn(n, 20)), -1)
        action = torch.distributions.Categorical(logits=logp.detach()).sample()
        return -(logp.gather(1, action[:, None])[:, 0] * reward.sample((n,))).mean()

    return loop(model, torch.optim.Adam(model.parameters(), 1e-3), loss_of)


@training(450)
def rewards_of_student_t():
    return policy(torch.distributions.StudentT(1.5), 32)


@training(450)
def rewards_of_cauchy():
    return policy(torch.distributions.StudentT(1.0), 8)


@training(450)
def inputs_of_student_t():
    model, tail = mlp(out=1), torch.distributions.StudentT(1.5)

    def loss_of(i):
        x = tail.sample((32, 20))
        return F.mse_loss(model(x)[:, 0], x[:, 0].clamp(-3, 3))

    return loop(model, torch.optim.Adam(model.parameters(), 1e-3), loss_of)


@training(500)
def full_batch_to_a_tiny_loss():
    model = nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 1))
    x = torch.randn(64, 20)
    return loop(model, torch.optim.Adam(model.parameters(), 1e-2), lambda i: F.mse_loss(model(x), x[:, :1].sin()))


@training(450)
def escape_from_a_saddle():
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(4)])
    for layer in model:
        layer.weight.data.mul_(0.35)
    x, w = torch.randn(256, 16), 0.7 * torch.randn(16, 16)
    return loop(model, torch.optim.SGD(model.parameters(), 0.05), lambda i: F.mse_loss(model(x), x @ w))


@training(450)
def converged_then_another_task():
    model, x = mlp(), task()[0]
    labels = [(x @ torch.randn(20, 5)).argmax(1) for _ in range(2)]

    def loss_of(i):
        a, b = draw(x, labels[(i // 200) % 2], 64)
        return F.cross_entropy(model(a), b)

    return loop(model, torch.optim.Adam(model.parameters(), 3e-3), loss_of)


@training()
def values_that_bootstrap_upwards():
    model = mlp(8, 64, 4)
    target = mlp(8, 64, 4)

    def loss_of(i):
        if i % 50 == 0:
            target.load_state_dict(model.state_dict())
        s, action = torch.randn(32, 8), torch.randint(0, 4, (32, 1))
        with torch.no_grad():
            goal = 1 + s[:, 0] + 0.99 * target(torch.randn(32, 8)).max(1).values
        return F.mse_loss(model(s).gather(1, action)[:, 0], goal)

    return loop(model, torch.optim.Adam(model.parameters(), 1e-3), loss_of)


@pytest.mark.parametrize(("build", "steps"), TRAININGS.values())
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_alarm(watch_training, build, steps, seed):
    torch.manual_seed(seed)
    models, step = build()
    assert watch_training(models, step, steps) == []
