"""Small trainings, healthy and not: each calls tick(step) when a step is over, and hands its scanner back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import nanscan

NAN, INF = float("nan"), float("inf")
Tick = Callable[[int], None]


class _InfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * INF


class Trap(nn.Module):
    """Hands its input on; `bad` says what it does to it instead."""

    bad: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bad == "nan":
            return (x - x.mean()).where(x < x.max(), x * NAN)
        return _InfGradient.apply(x) if self.bad == "gradient" else x * 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), Trap(), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Net(nn.Module):
    """Nested, with a residual and code between modules: `between` puts an Inf there."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.body, self.out = nn.Linear(4, 8), nn.Sequential(Block(), Block()), nn.Linear(8, 2)
        self.between = False

    @property
    def trap(self) -> Trap:
        return self.body[1].inner[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(self.inp(x))
        if self.between:
            x = torch.log(x * 0.0)
        return self.out(x)


STEPS, BAD_AT = 5, 2


class Run:
    """A net, its scanner and its optimizer. `at(step)` prepares a step; the rest is a training as anybody writes it."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.options = {"on_anomaly": "record", "escalate": False, **options}
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scanner: nanscan.Scanner

    def start(self) -> None:
        self.scanner = nanscan.enable(self.net, **self.options)

    def at(self, step: int) -> None:
        """What is done to the step before it runs."""

    def batch(self, step: int) -> torch.Tensor:
        return torch.randn(3, 4)

    def loss(self, out: torch.Tensor, step: int) -> torch.Tensor:
        return out.square().mean()

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def run(self, tick: Tick, steps: int = STEPS) -> nanscan.Scanner:
        self.start()
        for step in range(steps):
            self.at(step)
            self.optimizer.zero_grad()
            self.update(self.loss(self.net(self.batch(step)), step))
            tick(step)
        self.scanner.close()
        return self.scanner


class ForwardNan(Run):
    def at(self, step: int) -> None:
        self.net.trap.bad = "nan" if step == BAD_AT else None


class BetweenModules(Run):
    def at(self, step: int) -> None:
        self.net.between = step == BAD_AT


class BackwardInf(Run):
    def at(self, step: int) -> None:
        self.net.trap.bad = "gradient" if step == BAD_AT else None


class BadParameter(Run):
    def start(self) -> None:
        with torch.no_grad():
            self.net.body[0].inner[0].weight[3, 1] = NAN
        super().start()


class ParameterGoesBad(Run):
    """Written by hand between two steps."""

    def at(self, step: int) -> None:
        if step == BAD_AT:
            with torch.no_grad():
                self.net.body[0].norm.bias[2] = INF


class BadData(Run):
    def batch(self, step: int) -> torch.Tensor:
        x = torch.randn(3, 4)
        if step == BAD_AT:
            x[1, 2] = NAN
        return x


class InfiniteRate(Run):
    def at(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = INF if step == BAD_AT else 1e-3


class Checked(Run):
    """The loss goes bad outside every module, and a check looks at it. The bad gradient is dropped."""

    def loss(self, out: torch.Tensor, step: int) -> torch.Tensor:
        loss = (out.square().mean() * (0.0 if step == BAD_AT else 1.0)).log()
        return nanscan.check(loss, "loss")


class ScalerSkips(Run):
    """An overflow that a GradScaler expects: the step is skipped."""

    def start(self) -> None:
        super().start()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def at(self, step: int) -> None:
        self.net.trap.bad = "gradient" if step == BAD_AT else None

    def update(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Clipped(Run):
    """A norm overflows to Inf, and clipping by it makes NaN of what is Inf."""

    def at(self, step: int) -> None:
        self.net.trap.bad = "gradient" if step == BAD_AT else None

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()


class Accumulated(Run):
    """Two forwards and backwards to a step; the second of them goes bad in the forward, and its loss is dropped."""

    def loss(self, out: torch.Tensor, step: int) -> torch.Tensor:
        self.net.trap.bad = "nan" if step == BAD_AT else None
        second = self.net(self.batch(step))
        self.net.trap.bad = None
        return out.square().mean() if second.isnan().any() else (out + second).square().mean()


TRAININGS: dict[str, type[Run]] = {
    "healthy": Run,
    "forward nan": ForwardNan,
    "between modules": BetweenModules,
    "backward inf": BackwardInf,
    "bad parameter": BadParameter,
    "parameter goes bad": ParameterGoesBad,
    "bad data": BadData,
    "infinite rate": InfiniteRate,
    "check": Checked,
    "scaler skips": ScalerSkips,
    "clip": Clipped,
    "accumulated": Accumulated,
}
