"""Half-precision attention that multiplies queries with keys first and divides by sqrt(d) afterwards: the raw products pass
65504. Softmax over scores with inf is NaN. Source: ultralytics/ultralytics#24990, pytorch/pytorch#60939."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::bmm", "module": "blocks.0.scores", "cause": "fp16 overflow",
          "also": ["aten::matmul", "aten::baddbmm"], "step": 0, "kind": "inf", "after": {"loss": "nan"}}


class Scores(nn.Module):
    def forward(self, q, k):
        return (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.scores = Scores()

    def forward(self, x):
        return self.scores(self.q(x), self.k(x)).softmax(-1) @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Attention(16), Attention(16)])

    def forward(self, x):
        for b in self.blocks:
            x = x + b(x)
        return x


def build():
    torch.manual_seed(0)
    model = Net().half()
    x = torch.randn(2, 5, 16) * 150
    x = x.half()

    def step_fn(i):
        with torch.no_grad():
            return model(x).float().mean().item()
    return model, step_fn
