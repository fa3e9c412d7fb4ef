"""HEALTHY: inference on padded sequences. The rows of padding attend to nothing (a softmax over only -inf, NaN), and only the
rows of real tokens are taken out of the result before anything else reads it.
Source: the harmless side of pytorch/pytorch#41508 and #103749."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 2, "kind": "none",
          "trap": "NaN rows of a masked softmax, dropped by indexing before they are used"}


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, real):
        both = real[:, :, None] & real[:, None, :]
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return scores.masked_fill(~both, float("-inf")).softmax(-1) @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.head = Attention(4), nn.Linear(4, 2)

    def forward(self, x, real):
        return self.head(self.attn(x, real)[real])


def build():
    torch.manual_seed(0)
    model = Net().eval()
    x = torch.randn(2, 5, 4)
    real = torch.tensor([[True, True, True, True, True], [True, True, False, False, False]])

    def step_fn(i):
        with torch.no_grad():
            return model(x, real).pow(2).mean().item()
    return model, step_fn
