"""Affine coupling of a flow, recomputed in the backward pass to save memory. The log-scale is not bounded, an outlier in the
second batch makes exp overflow. Source: VincentStimper/normalizing-flows#47 and #73, andreas128/SRFlow#2."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

EXPECT = {"phase": "forward", "op": "aten::exp", "module": "flows.1.affine", "cause": "exp overflow", "step": 1,
          "steps": 2, "kind": "inf", "after": {"grads": "nan"}}


class Affine(nn.Module):
    def forward(self, x, s, t):
        return x * torch.exp(s) + t


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.affine = Affine()

    def forward(self, z):
        a, b = z.chunk(2, -1)
        s, t = self.net(a).chunk(2, -1)
        return torch.cat([self.affine(b, s, t), a], -1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.flows = nn.ModuleList([Coupling(), Coupling()])

    def forward(self, z):
        for f in self.flows:
            z = checkpoint(f, z, use_reentrant=False)
        return z


def build():
    torch.manual_seed(0)
    model = Flow()
    batches = [torch.randn(6, 4), torch.randn(6, 4)]
    batches[1][1:5] = 3000 * torch.tensor([[0, 0, 1.0, 1], [0, 0, 1, -1], [0, 0, -1, 1], [0, 0, -1, -1]])

    def step_fn(i):
        model.zero_grad()
        loss = model(batches[i]).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
