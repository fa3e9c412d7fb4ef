"""Negative binomial likelihood of counts: the dispersion is exp(raw) and underflows to 0, where the log-gamma function has a
pole. Source: OmicsML/dance#166, cellarium-ai/cellarium-ml#171 (the case theta = 0)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::lgamma", "module": "nll", "cause": "pole of a special function",
          "also_cause": ["underflow", "log of zero"], "step": 0, "kind": "inf", "after": {"loss": "inf", "grads": "nan"}}


class NegativeBinomial(nn.Module):
    def forward(self, y, mu, theta):
        choose = torch.lgamma(y + theta) - torch.lgamma(theta) - torch.lgamma(y + 1)
        share = theta + mu
        return -(choose - theta * torch.log1p(mu / (theta + 1e-8)) + y * (mu / share).log()).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 4)
        self.raw = nn.Parameter(torch.tensor([0.5, -1.0, -120.0, 0.0]))
        self.nll = NegativeBinomial()

    def forward(self, x, y):
        return self.nll(y, nn.functional.softplus(self.mean(x)), self.raw.exp())


def build():
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(6, 3)
    y = torch.randint(1, 9, (6, 4)).float()

    def step_fn(i):
        loss = model(x, y)
        loss.backward()
        return loss.item()
    return model, step_fn
