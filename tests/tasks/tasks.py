"""Small programs with a known numerical fault, and healthy ones: what a tool is compared on with its peers.

Each builder returns a Task: ``forward()``, ``loss()`` and ``step()`` (forward, backward, optimizer). T1..T6 go wrong in
the first step at the line marked ORIGIN, T7 diverges in the course of training, T8 and T8b are healthy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Task:
    """A model, one batch, a loss and an optimizer. `module` is where the fault is born, None for a healthy task."""

    def __init__(
        self,
        model: nn.Module,
        batch: tuple[torch.Tensor, ...],
        loss: Callable[[torch.Tensor], torch.Tensor],
        *,
        module: str | None = None,
        phase: str | None = None,
        adamw: bool = False,
        lr: float = 1e-3,
    ) -> None:
        self.model, self.batch, self.loss_of = model, batch, loss
        self.module, self.phase = module, phase
        kind = torch.optim.AdamW if adamw else torch.optim.SGD
        self.optimizer = kind(model.parameters(), lr=lr)

    def forward(self) -> torch.Tensor:
        return self.model(*self.batch)

    def loss(self) -> torch.Tensor:
        return self.loss_of(self.forward())

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def mean_square(out: torch.Tensor) -> torch.Tensor:
    return out.pow(2).mean()


def cross_entropy(target: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda out: F.cross_entropy(out.flatten(0, -2), target.flatten())


# T1: exp overflows between two layers, in the root's own code


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 128)
        self.l4 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.l2(F.gelu(self.l1(x))))
        h = torch.exp(self.l3(h))  # ORIGIN
        return self.l4(h)


def t1() -> Task:
    torch.manual_seed(0)
    model = MLP()
    with torch.no_grad():
        model.l3.weight.mul_(3e3)
    x = torch.randn(32, 64)
    y = torch.randint(0, 10, (32,), generator=torch.Generator().manual_seed(1))
    return Task(model, (x,), cross_entropy(y), module="", phase="forward")


# T2: one query of one layer's attention sees no key. T8 is the same GPT, healthy


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bad: bool, additive: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.bad, self.additive = heads, bad, additive

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)
        mask = torch.ones(T, T, dtype=torch.bool).triu(1)
        if self.bad:
            mask[T // 2] = True
        if self.additive:
            scores = scores + torch.zeros(T, T).masked_fill(mask, float("-inf"))
        else:
            scores = scores.masked_fill(mask, float("-inf"))
        mixed = scores.softmax(-1) @ v  # ORIGIN
        return self.proj(mixed.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bad: bool, additive: bool) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, bad, additive)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(
        self, vocab: int, width: int, seq: int, layers: int = 4, bad_layer: int | None = None, additive: bool = False
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, 4, i == bad_layer, additive) for i in range(layers))
        self.nf, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.nf(x))


def gpt(*, small: bool, bad: bool, additive: bool) -> Task:
    torch.manual_seed(0)
    vocab, width, seq, batch = (128, 64, 32, 4) if small else (512, 256, 128, 8)
    model = GPT(vocab, width, seq, bad_layer=2 if bad else None, additive=additive)
    ids = torch.randint(0, vocab, (batch, seq))
    truth = {"module": "blocks.2.attn", "phase": "forward"} if bad else {}
    return Task(model, (ids,), cross_entropy(torch.roll(ids, -1, 1)), adamw=True, lr=3e-4, **truth)


def t2(small: bool = True) -> Task:
    return gpt(small=small, bad=True, additive=False)


def t8(small: bool = True) -> Task:
    return gpt(small=small, bad=False, additive=True)


# T8b: the additive -inf mask is an input, of the root and of every layer


class MaskedLayers(nn.Module):
    def __init__(self, width: int = 64, vocab: int = 128) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        return self.head(x)


def t8b() -> Task:
    torch.manual_seed(0)
    model = MaskedLayers()
    ids = torch.randint(0, 128, (4, 32))
    bias = torch.full((32, 32), float("-inf")).triu(1)
    return Task(model, (ids, bias), cross_entropy(torch.roll(ids, -1, 1)), adamw=True, lr=3e-4)


# T3a, T3b: finite loss, NaN gradient


class SqrtNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(16, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.l1(x)
        return self.l2(torch.sqrt(h * h) * (h != 0).float())  # ORIGIN (backward)


class WhereNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(16, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = torch.cos(self.l1(x))  # 1 for rows of zeros
        a = torch.acos(c)  # ORIGIN (backward)
        return self.l2(torch.where(c < 1, a, torch.zeros_like(a)))


def zero_row(kind: type[nn.Module]) -> Task:
    torch.manual_seed(0)
    model = kind()
    x = torch.randn(8, 16)
    x[3] = 0
    return Task(model, (x,), mean_square, module="", phase="backward")


def t3a() -> Task:
    return zero_row(SqrtNet)


def t3b() -> Task:
    return zero_row(WhereNet)


# T4: a custom autograd function's backward makes an Inf


class BadScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        g[0, 0] = g[0, 0].abs() * float("inf")  # ORIGIN (backward)
        return g


class BadModule(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return BadScale.apply(x)


class FunctionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.mid, self.l2 = nn.Linear(16, 16), BadModule(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l2(self.mid(torch.tanh(self.l1(x))))


def t4() -> Task:
    torch.manual_seed(0)
    return Task(FunctionNet(), (torch.randn(8, 16),), mean_square, module="mid", phase="backward")


# T5, T6, T6b: a C++ extension returns a NaN, or writes one where nobody tells the dispatcher

CPP = r"""
#include <limits>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
at::Tensor nan_scale(const at::Tensor& x, double s) {
  at::Tensor out = x.contiguous().clone();
  float* p = out.data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) p[i] *= static_cast<float>(s);
  p[5] = std::numeric_limits<float>::quiet_NaN();
  return out;
}
TORCH_LIBRARY(nanscan_tasks, m) { m.def("nan_scale(Tensor x, float s) -> Tensor"); }
TORCH_LIBRARY_IMPL(nanscan_tasks, CPU, m) { m.impl("nan_scale", &nan_scale); }
extern "C" void scribble(float* p) { p[7] = std::numeric_limits<float>::quiet_NaN(); }
"""

_library: ctypes.CDLL | None = None


def build_extension(folder: str) -> None:
    """Compile and load the C++ above; T5, T6 and T6b need it."""
    global _library
    from torch.utils.cpp_extension import load_inline

    path = load_inline(
        "nanscan_tasks",
        CPP,
        build_directory=folder,
        extra_cflags=["-O0"],
        is_python_module=False,
        no_implicit_headers=True,
    )
    _library = ctypes.CDLL(path or f"{folder}/nanscan_tasks.so")


def scribble(x: torch.Tensor) -> None:
    """Write a NaN into element 7, without torch."""
    assert _library is not None, "call build_extension() first"
    _library.scribble(ctypes.c_void_p(x.data_ptr()))


class CppOp(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.ops.nanscan_tasks.nan_scale(h.detach(), 0.5)  # ORIGIN


class CppNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.cust, self.l2 = nn.Linear(16, 16), CppOp(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l2(torch.tanh(self.cust(self.l1(x))))


def t5() -> Task:
    torch.manual_seed(0)
    return Task(CppNet(), (torch.randn(8, 16),), mean_square, module="cust", phase="forward")


class Scribbler(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        scribble(h)  # ORIGIN
        return torch.sigmoid(h)  # first reader


class ScribbleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.raw, self.l2 = nn.Linear(16, 16), Scribbler(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l2(self.raw(self.l1(x)))


def t6() -> Task:
    torch.manual_seed(0)
    return Task(ScribbleNet(), (torch.randn(8, 16),), mean_square, module="raw", phase="forward")


class ScribbleElsewhere(nn.Module):
    def forward(self, h: torch.Tensor, victim: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(h)
        scribble(victim)  # ORIGIN, read much later
        return out


class Join(nn.Module):
    def forward(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return h + skip  # first reader


class SkipNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.raw, self.mid = nn.Linear(16, 16), ScribbleElsewhere(), nn.Linear(16, 16)
        self.join, self.l2 = Join(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.l1(x)
        h = self.mid(self.raw(skip * 2, skip))
        return self.l2(self.join(h, skip))


def t6b() -> Task:
    torch.manual_seed(0)
    return Task(SkipNet(), (torch.randn(8, 16),), mean_square, module="join", phase="forward")


# T7: too high a learning rate


def t7(slow: bool = False) -> tuple[Task, Callable[[int], float]]:
    """The task, and the learning rate of each step. Fast: it ramps up, and a deep net diverges within a few steps.
    Slow: linear regression, a little over the limit of stability from step 25 on.
    """
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    y = x[:, :1] * 2 + x[:, 1:2] ** 2
    layers: list[nn.Module] = []
    for _ in range(0 if slow else 6):
        layers += [nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    task = Task(nn.Sequential(*layers, nn.Linear(64, 1)), (x,), lambda out: F.mse_loss(out, y), lr=0.02)
    if slow:
        return task, lambda step: 0.02 if step < 25 else 0.35
    return task, lambda step: 0.02 * 1.12 ** max(0, step - 25)


def first_bad_step(task: Task, lr_at: Callable[[int], float], steps: int, on_step: Callable[[], object]) -> int | None:
    """Train; the first step with a non-finite loss or gradient, None if there is none. Calls on_step after each."""
    for step in range(steps):
        for group in task.optimizer.param_groups:
            group["lr"] = lr_at(step)
        loss = task.step()
        on_step()
        gradients = [p.grad for p in task.model.parameters() if p.grad is not None]
        if not all(torch.isfinite(value).all() for value in (loss, *gradients)):
            return step
    return None
