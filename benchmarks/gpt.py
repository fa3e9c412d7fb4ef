"""The GPT of the GPU benchmarks: the plainest there is, with torch's own attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Shape(NamedTuple):
    """Sizes of the model and its batch."""

    n_ids: int = 50304
    length: int = 1024
    width: int = 768
    n_layers: int = 12
    n_heads: int = 12
    batch: int = 8

    @classmethod
    def tiny(cls) -> Shape:
        return cls(n_ids=256, length=32, width=32, n_layers=2, n_heads=2, batch=2)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads = shape.n_heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """ids and targets [B, T] -> loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(shape.n_ids, shape.width), nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.n_ids, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
