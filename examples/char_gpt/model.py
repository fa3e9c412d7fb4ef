"""A small character-level GPT: pre-norm blocks, attention that is global and local in turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import IGNORED, PAD


@dataclass(frozen=True)
class Config:
    """Sizes of the model. `window` is how far back the local layers (every second one) look."""

    n_ids: int
    length: int = 128
    width: int = 64
    n_layers: int = 4
    n_heads: int = 4
    window: int = 64


class Attention(nn.Module):
    """Causal self-attention; with a window, over the last `window` characters only."""

    def __init__(self, config: Config, window: int | None) -> None:
        super().__init__()
        self.n_heads, self.window = config.n_heads, window
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def visible(self, padding: torch.Tensor) -> torch.Tensor:
        """Which key [.., j] a query [.., i, ..] may look at; padding is [B, T], the result [B, 1, T, T]."""
        T = padding.shape[1]
        back = torch.arange(T)[:, None] - torch.arange(T)[None, :]  # [T, T] how far behind the query a key lies
        near = (back >= 0) & (back < (self.window or T))
        # A position always sees itself: a row without any key has no softmax.
        return ((near & ~padding[:, None, :]) | (back == 0))[:, None]

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """From how well keys answer queries to how much of each value is taken: [B, H, T, T] both."""
        return scores.softmax(-1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mixed = self.weights(scores.masked_fill(~self.visible(padding), float("-inf"))) @ v
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config, window: int | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn = Attention(config, window)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), padding)
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    """ids and targets [B, T] -> loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.n_ids, config.width, padding_idx=PAD)
        self.position = nn.Embedding(config.length, config.width)
        windows = [config.window if i % 2 else None for i in range(config.n_layers)]
        self.blocks = nn.ModuleList(Block(config, window) for window in windows)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.n_ids, bias=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padding = ids == PAD
        x = (self.token(ids) + self.position(torch.arange(ids.shape[1]))) * ~padding[..., None]  # padding is all zero
        for block in self.blocks:
            x = block(x, padding)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)
