"""Numerical mistakes people really make, each planted into a healthy CharGPT by exchanging one class.

None of them shows in the first step: they wait for the first short document, or for attention to become sure of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn
from model import Attention, CharGPT


class PaddedAttention(Attention):
    """Masks causality, window and padding, but forgets that every position needs a key.

    Behind the end of a short document a local layer's window holds padding only.
    """

    def visible(self, padding: torch.Tensor) -> torch.Tensor:
        T = padding.shape[1]
        back = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        near = (back >= 0) & (back < (self.window or T))
        return (near & ~padding[:, None, :])[:, None]  # softmax of a row of nothing but -inf is 0/0


class HalfAttention(Attention):
    """Writes softmax out, in half precision to save memory, and does not subtract the row's maximum.

    exp() of anything above 11.09 is Inf in float16, and scores grow while the model learns.
    """

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        e = scores.half().exp()
        return (e / e.sum(-1, keepdim=True)).float()


class HandMadeNorm(nn.Module):
    """LayerNorm written out, eps added to the standard deviation: right in the forward pass, padding included.

    But the slope of sqrt at the variance of an all-zero row is infinite, and 0 * Inf comes back from it.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        std = deviation.square().mean(-1, keepdim=True).sqrt()
        return deviation / (std + self.eps) * self.weight + self.bias


def _every_attention(kind: type[Attention]) -> Callable[[CharGPT], None]:
    def plant(model: CharGPT) -> None:
        for block in model.blocks:
            block.attn.__class__ = kind

    return plant


def _every_norm(model: CharGPT) -> None:
    for block in model.blocks:
        block.norm1, block.norm2 = HandMadeNorm(block.norm1), HandMadeNorm(block.norm2)


@dataclass(frozen=True)
class Mistake:
    """One mistake: what it is, in a line, and how it gets into a model."""

    summary: str
    plant: Callable[[CharGPT], None]


MISTAKES = {
    "empty-rows": Mistake(
        "the padding mask of a short document leaves rows of local attention without a key",
        _every_attention(PaddedAttention),
    ),
    "half-softmax": Mistake(
        "softmax written out in float16 overflows once attention scores have grown", _every_attention(HalfAttention)
    ),
    "norm-eps": Mistake("a norm's eps stands outside the square root, and a padded position is all zero", _every_norm),
}
