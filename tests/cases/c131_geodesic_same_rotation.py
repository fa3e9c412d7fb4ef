"""Two views of an object should get the same rotation; the loss is the geodesic angle acos((trace - 1) / 2). In the
second batch the views are identical, the trace of R R^T is 3 up to rounding, and rounding often goes upwards.
Source: naver/roma#9, papagina/RotationContinuity#1."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::acos", "module": None, "cause": "acos outside [-1, 1]", "step": 1,
          "steps": 2, "kind": "nan", "also": ["aten::arccos"], "after": {"loss": "nan", "grads": "nan"}}


class RotationHead(nn.Module):
    """Six numbers to a rotation matrix: two columns are made orthonormal, the third is their cross product."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 6)

    def forward(self, x):
        a, b = self.fc(x).split(3, -1)
        a = nn.functional.normalize(a, dim=-1)
        b = nn.functional.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
        return torch.stack([a, b, torch.linalg.cross(a, b)], -1)


def build():
    torch.manual_seed(0)
    model = RotationHead()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 5)
    pairs = [(x, x + 0.3 * torch.randn(256, 5)), (x, x.clone())]

    def step_fn(i):
        opt.zero_grad()
        r1, r2 = (model(v) for v in pairs[i])
        trace = (r1 * r2).sum((-2, -1))
        loss = torch.acos((trace - 1) / 2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
