"""Poisson regression with LBFGS and a step size meant for another optimiser: inside opt.step the closure is called again at a
point so far away that exp overflows. Source: pytorch/pytorch#5953, #118767, mjacar/pytorch-trpo#3."""
import torch
from torch import nn

EXPECT = {"phase": "optimizer", "op": "aten::exp", "module": "rate", "cause": "exp overflow", "also_cause": ["lr too high"],
          "also_phase": ["forward"], "step": 0, "kind": "inf", "after": {"params": "nan"}}


class Rate(nn.Module):
    def forward(self, eta):
        return torch.exp(eta)


class Poisson(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.rate = nn.Linear(3, 1), Rate()

    def forward(self, x):
        eta = self.linear(x)
        return eta, self.rate(eta)


def build():
    torch.manual_seed(0)
    model = Poisson()
    opt = torch.optim.LBFGS(model.parameters(), lr=400, max_iter=4)
    x = torch.randn(16, 3)
    y = torch.poisson(torch.exp(x.sum(1, keepdim=True).clamp(max=2)))

    def step_fn(i):
        def closure():
            opt.zero_grad()
            eta, rate = model(x)
            loss = (rate - y * eta).mean()
            loss.backward()
            return loss
        return opt.step(closure).item()
    return model, step_fn
