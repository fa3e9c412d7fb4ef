"""Evidential classification: the network's evidence is taken as the Dirichlet parameters themselves, without adding
1. For an unusual input ReLU leaves no evidence at all for one class, and digamma has a pole at 0. Source:
aamini/evidential-deep-learning#5, ericsuh/dirichlet#1."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::digamma", "module": None, "cause": "pole of a special function", "step": 1,
          "steps": 2, "kind": "inf", "also": ["aten::special_digamma"], "after": {"loss": "inf", "grads": "finite"}}


class Evidence(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3), nn.ReLU())

    def forward(self, x):
        return self.net(x)


def expected_cross_entropy(alpha, y):
    total = alpha.sum(-1, keepdim=True)
    return (y * (torch.digamma(total) - torch.digamma(alpha))).sum(-1).mean()


def build():
    torch.manual_seed(0)
    model = Evidence()
    with torch.no_grad():
        model.net[2].bias.fill_(2.5)
        model.net[2].weight[1] = 0.4
        model.net[0].weight[:, 0] = -1.0
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = 0.1 * torch.randn(2, 6, 3)
    x[1, 4, 0] = 50.0
    y = torch.eye(3)[torch.randint(3, (2, 6))]

    def step_fn(i):
        opt.zero_grad()
        loss = expected_cross_entropy(model(x[i]), y[i])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
