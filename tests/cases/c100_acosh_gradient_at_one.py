"""Distances on the hyperboloid: every point starts at the origin, so minus the Lorentz product is exactly 1. acosh(1) = 0 is
right, its derivative 1 / sqrt(1 - 1) is infinite (clamping at 1 does not help: the border lets the gradient through).
Source: CUAI/Differentiable-Frechet-Mean#2 (Lorentz model gives NaN), HazyResearch/hgcn#4, geoopt/geoopt#215."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "AcoshBackward0", "module": "dist", "cause": "acos gradient at 1",
          "also_cause": ["division by zero", "unknown"], "step": 0, "kind": "inf", "after": {"loss": "finite", "grads": "nan"}}


class LorentzDistance(nn.Module):
    def forward(self, u, v):
        tu, tv = (1 + (u * u).sum(-1)).sqrt(), (1 + (v * v).sum(-1)).sqrt()
        return torch.acosh((tu * tv - (u * v).sum(-1)).clamp(min=1.0))


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Embedding(4, 3)
        nn.init.zeros_(self.points.weight)
        self.dist = LorentzDistance()

    def forward(self, a, b):
        return self.dist(self.points(a), self.points(b))


def build():
    model = Embed()
    a, b = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])

    def step_fn(i):
        loss = (model(a, b) - 0.5).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
