"""Training with a device behind it changes no bit, and keeps nothing alive. "cpu" trains without a scanner."""

from __future__ import annotations

import gc
import hashlib
import weakref
from typing import Any

import torch
from late import Late, answer, start
from torch import nn
from torch.nn import functional as F

import nanscan

STEPS = 20


class Attention(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(19, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Attention(16) for _ in range(2)])
        self.ln, self.head = nn.LayerNorm(16), nn.Linear(16, 19, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))

    def loss(self) -> torch.Tensor:
        ids = torch.randint(0, 19, (4, 9))
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def loss(self) -> torch.Tensor:
        return F.cross_entropy(self(torch.randn(6, 1, 8, 8)), torch.randint(0, 3, (6,)))


def digest(tensors: list[torch.Tensor]) -> str:
    """Of every bit of them."""
    whole = hashlib.sha256()
    for t in tensors:
        whole.update(t.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def train(make: type[GPT] | type[CNN], late: Late | None) -> dict[str, Any]:
    """A digest per step of loss, gradients and state."""
    torch.manual_seed(3)
    model = make()
    scanner = None if late is None else nanscan.enable(model, on_anomaly="raise", escalate=False)
    updates = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = []
    for step in range(STEPS):
        updates.zero_grad()
        loss = model.loss()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        updates.step()
        steps.append(digest([loss, *gradients, *model.state_dict().values()]))
        if late is not None and step % 3 == 2:
            late.stream(step)
            late.release(100, step)
    facts: dict[str, Any] = {"steps": steps}
    if scanner is not None:
        late.stream(0)
        scanner.close()
        facts.update(scans=scanner.stats["scans"], first=str(scanner.first), failure=scanner.coverage["failure"])
    return facts


def retained() -> dict[str, int]:
    """Activations and gradients that are still there when only their records are held."""
    model = CNN()
    scanner = nanscan.enable(model, on_anomaly="record", escalate=False)
    seen: list[weakref.ref[torch.Tensor]] = []

    def watch(_module: nn.Module, _args: Any, out: torch.Tensor) -> None:
        seen.append(weakref.ref(out))
        out.register_hook(lambda grad: seen.append(weakref.ref(grad)))

    for module in model.modules():
        module.register_forward_hook(watch)
    for _ in range(2):
        model.loss().backward()
        model.zero_grad(set_to_none=True)
    gc.collect()
    left = {"seen": len(seen), "alive": sum(r() is not None for r in seen), "pending": scanner._core.pending}
    scanner.close()
    return left


def main() -> None:
    late = start()
    answer({
        "gpt": train(GPT, late),
        "cnn": train(CNN, late),
        "retained": {} if late is None else retained(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
