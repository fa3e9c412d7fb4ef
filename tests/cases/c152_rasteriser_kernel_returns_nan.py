"""A point location kernel (an extension; torch sees only its name) answers NaN for a triangle whose corners lie on
one line. The second mesh has such a triangle. Source: facebookresearch/pytorch3d#508, #561 (NaN barycentric
coordinates out of the kernel)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "case152::locate", "module": "raster", "cause": "unknown",
          "also_cause": ["custom kernel"], "step": 1, "steps": 2, "kind": "nan",
          "after": {"loss": "nan", "grads": "nan"}}

if not hasattr(torch.ops.case152, "locate"):
    @torch.library.custom_op("case152::locate", mutates_args=())
    def locate(corners: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
        rows = []
        for (ax, ay), (bx, by), (cx, cy) in corners.tolist():
            px, py = point.tolist()
            area = (bx - ax) * (cy - ay) - (cx - ax) * (by - ay)
            if abs(area) < 1e-9:                 # the kernel's own way to say "no answer"
                rows.append([float("nan")] * 3)
                continue
            u = ((bx - px) * (cy - py) - (cx - px) * (by - py)) / area
            v = ((cx - px) * (ay - py) - (ax - px) * (cy - py)) / area
            rows.append([u, v, 1 - u - v])
        return torch.tensor(rows)


class Raster(nn.Module):
    def forward(self, corners, point):
        return torch.ops.case152.locate(corners, point)


class Shader(nn.Module):
    def __init__(self):
        super().__init__()
        self.raster, self.colour = Raster(), nn.Parameter(torch.rand(3, 3))

    def forward(self, corners, point):
        return self.raster(corners, point) @ self.colour


def build():
    torch.manual_seed(0)
    model = Shader()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    meshes = torch.tensor([[[[0.0, 0], [1, 0], [0, 1]], [[1.0, 0], [1, 1], [0, 1]]]]).repeat(2, 1, 1, 1)
    meshes[1, 1] = torch.tensor([[0.0, 0], [0.5, 0.5], [1, 1]])
    point, seen = torch.tensor([0.4, 0.3]), torch.rand(2, 3)

    def step_fn(i):
        opt.zero_grad()
        loss = (model(meshes[i], point) - seen).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
