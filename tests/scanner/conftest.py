"""A clean process around every test, nets that go wrong on demand, and whole programs in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import nanscan

# What decides about a run. How the core is found (NANSCAN_BACKEND, NANSCAN_CACHE_DIR ...) stays the caller's choice.
ENVIRONMENT = (
    "NANSCAN", "NANSCAN_ON_ANOMALY", "NANSCAN_DIR", "NANSCAN_EVERY",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the caller's shell decides, and no scanner, allowance or hook outlives its test."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    nanscan.disable()
    from nanscan.scanner import api

    api._allowed.clear()
    assert global_hooks() == [], "a test left a hook behind"


def global_hooks() -> list[str]:
    """Every process-wide place that nanscan hooks into, where something is left."""
    places = {
        "module forward": torch_module._global_forward_hooks,
        "module forward, always": torch_module._global_forward_hooks_always_called,
        "module forward pre": torch_module._global_forward_pre_hooks,
        "module backward": torch_module._global_backward_hooks,
        "optimizer pre": torch_optimizer._global_optimizer_pre_hooks,
        "optimizer post": torch_optimizer._global_optimizer_post_hooks,
    }
    found = [name for name, hooks in places.items() if hooks]
    return found + [
        f"GradScaler.{n}" for n in ("scale", "step", "update") if hasattr(getattr(GradScaler, n), "__wrapped__")
    ]


def module_hooks(model: nn.Module) -> list[tuple[str, str]]:
    """(module, kind) of every hook on any module of `model`."""
    return [
        (name, key)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if "hook" in key and isinstance(value, dict) and value
    ]


@pytest.fixture
def hooks_of() -> Callable[[nn.Module], list[Any]]:
    """hooks_of(model): what is hooked, on its modules and process-wide."""
    return lambda model: [*module_hooks(model), *global_hooks()]


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * NAN


class Trap(nn.Module):
    """Hands its input on, until `bad` says "forward" (NaN comes out), "inf" or "backward" (the gradient goes bad)."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bad == "forward":
            return x * NAN
        if self.bad == "inf":
            return x + INF
        return _BadGradient.apply(x) if self.bad == "backward" else x * 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.trap = Trap()
        self.b = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.trap(self.a(x)))


class Training:
    """A net, its optimizer and one line per step; `at` maps a step to what the trap does in it."""

    def __init__(self, net: nn.Module, lr: float = 1e-3, optimizer: Callable[..., Any] = torch.optim.SGD) -> None:
        self.net = net
        self.optimizer = optimizer(net.parameters(), lr=lr)
        self.step_number = 0

    def step(self, bad: str | None = None, x: torch.Tensor | None = None, set_to_none: bool = True) -> None:
        if bad is not None or hasattr(self.net, "trap"):
            self.net.trap.bad = bad
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self.net(torch.ones(3, 4) if x is None else x).sum().backward()
        self.optimizer.step()
        self.step_number += 1

    def run(self, steps: int, at: dict[int, str] | None = None) -> None:
        for _ in range(steps):
            self.step((at or {}).get(self.step_number))


@pytest.fixture
def make_net() -> Callable[[], Net]:
    """make_net(): Linear, Trap, Linear, called a, trap, b; takes [n, 4]."""
    return Net


@pytest.fixture
def training() -> Training:
    """A Net in training."""
    return Training(Net())


@pytest.fixture
def make_training() -> type[Training]:
    return Training


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.fc(self.norm(x)))


class Compiled:
    """A model (inp, two residual blocks, out; takes [n, 4]), compiled into one graph, which counts its graphs."""

    def __init__(self, backend: str = "aot_eager") -> None:
        from torch._dynamo.testing import CompileCounterWithBackend

        self.model = nn.Sequential()
        for name, module in (("inp", nn.Linear(4, 8)), ("b0", Block()), ("b1", Block()), ("out", nn.Linear(8, 2))):
            self.model.add_module(name, module)
        self.counter = CompileCounterWithBackend(backend)
        self.call = torch.compile(self.model, backend=self.counter, fullgraph=True)

    @property
    def graphs(self) -> int:
        return self.counter.frame_count

    def train(self, steps: int, call: Callable[[torch.Tensor], torch.Tensor] | None = None) -> list[float]:
        """The losses of so many steps, through the compiled model or what calls it."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        losses = []
        for batch in torch.randn(steps, 3, 4, generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            loss = (call or self.call)(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


@pytest.fixture
def compiled() -> Iterator[type[Compiled]]:
    """compiled(backend="aot_eager"): see Compiled. Dynamo's caches are emptied around the test."""
    torch._dynamo.reset()
    yield Compiled
    nanscan.disable()
    torch._dynamo.reset()


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_program(source, **environment): a Python program in a process of its own; its warnings go to stderr."""

    def run(
        source: str, *, expect: int = 0, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + textwrap.dedent(source))
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=timeout, env=env, cwd=tmp_path
        )
        assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


# What every program starts with: a net whose trap goes bad on demand, as in the fixtures above.
PREAMBLE = """
import os, sys, torch
from torch import nn
import nanscan
torch.set_num_threads(1)
torch.manual_seed(0)

class Trap(nn.Module):
    bad = False
    def forward(self, x):
        return x * float("nan") if self.bad else x * 1.0

net = nn.Sequential(nn.Linear(4, 8), Trap(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

def step(bad=False):
    net[1].bad = bad
    optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""
