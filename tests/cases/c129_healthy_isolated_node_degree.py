"""HEALTHY: graph convolution with symmetric normalisation. A node without neighbours has degree 0, 0 ** -0.5 = inf, and the next
line replaces every inf by 0. Degrees carry no gradient.
Source: pyg-team/pytorch_geometric#61 (the idiom), mlx-graphs/mlx-graphs#18, wujcan/SGL-TensorFlow#19 ("safe to run")."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 3, "kind": "none",
          "trap": "+inf made by a negative power and replaced at once"}


class GCN(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.lin = nn.Linear(a, b, bias=False)

    def forward(self, x, edges):
        src, dst = edges
        deg = torch.zeros(len(x)).index_add_(0, dst, torch.ones(len(dst)))
        scale = deg.pow(-0.5)
        scale.masked_fill_(scale == float("inf"), 0.0)
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, dst, h[src] * (scale[src] * scale[dst])[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = GCN(3, 8), GCN(8, 2)

    def forward(self, x, edges):
        return self.b(self.a(x, edges).relu(), edges)


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    edges = torch.tensor([[0, 1, 1, 2, 3, 0], [1, 0, 2, 1, 0, 3]])

    def step_fn(i):
        opt.zero_grad()
        loss = (model(x, edges) - y).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
