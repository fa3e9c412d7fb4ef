"""Warping with a homography: the third coordinate of one grid point is 0, so 1 / z is inf, and torch.where puts 1 there. The
sampled image is right; in the backward pass 0 * inf^2 = NaN reaches the homography. Source: kornia/kornia#367."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::reciprocal", "module": "project", "cause": "division by zero",
          "also_cause": ["torch.where hides a bad branch", "0 * inf in backward"],
          "also": ["ReciprocalBackward0", "aten::mul", "MulBackward0"], "also_phase": ["backward"], "step": 0, "kind": "inf",
          "also_kind": ["nan"], "after": {"loss": "finite", "grads": "nan"}}


class Project(nn.Module):
    def forward(self, p):
        z = p[..., 2:]
        return p[..., :2] * torch.where(z.abs() > 1e-8, 1.0 / z, torch.ones_like(z))


class Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Parameter(torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 1.0]]))
        self.project = Project()

    def forward(self, image, points):
        return nn.functional.grid_sample(image, self.project(points @ self.h.t()), align_corners=False)


def build():
    torch.manual_seed(0)
    model = Warp()
    image = torch.randn(1, 1, 5, 5)
    u = torch.linspace(-1, 1, 5)
    points = torch.stack([u[None, :].expand(5, 5), u[:, None].expand(5, 5), torch.ones(5, 5)], -1)[None]

    def step_fn(i):
        loss = (model(image, points) - image).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
