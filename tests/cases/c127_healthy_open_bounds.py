"""HEALTHY: projected gradient descent with box constraints; -inf and inf stand for "no bound" on that side. After each step the
parameters are clamped to the box. Source: own setting (the usual convention of bounded optimisers)."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 4, "kind": "none",
          "allow": ("buffers",), "trap": "inf in buffers that are the bounds of a clamp"}


class Boxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        inf = float("inf")
        self.register_buffer("low", torch.tensor([-inf, 0.0, -inf, 0.1]))
        self.register_buffer("high", torch.tensor([inf, inf, 0.5, 0.2]))

    def forward(self, x):
        return x @ self.w

    @torch.no_grad()
    def project(self):
        self.w.copy_(torch.clamp(self.w, self.low, self.high))


def build():
    torch.manual_seed(0)
    model = Boxed()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 4), torch.randn(12)

    def step_fn(i):
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        model.project()
        return loss.item()
    return model, step_fn
