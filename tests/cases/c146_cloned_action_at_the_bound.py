"""Behaviour cloning with a tanh-squashed Gaussian: the likelihood of a recorded action needs its inverse tanh, and
an expert who pushed the stick to the end recorded exactly 1. Source: rlworkgroup/garage#2129, tensorflow/agents#166,
cvoelcker/reppo#4."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::atanh", "module": None, "cause": "domain error", "also_cause": ["pole of a special function"], "also": ["aten::arctanh"],
          "also_phase": ["data"], "step": 2, "steps": 3, "kind": "inf", "after": {"loss": "nan", "grads": "inf"}}


class Cloner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, obs):
        return self.net(obs), self.log_std.exp()


def squashed_log_prob(mean, std, action):
    before = torch.atanh(action)
    return -0.5 * ((before - mean) / std).pow(2) - std.log() - torch.log1p(-action.pow(2))


def build():
    torch.manual_seed(0)
    model = Cloner()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    obs = torch.randn(3, 6, 4)
    action = 0.9 * torch.tanh(torch.randn(3, 6, 2))
    action[2, 1, 0] = 1.0

    def step_fn(i):
        opt.zero_grad()
        mean, std = model(obs[i])
        loss = -squashed_log_prob(mean, std, action[i]).sum(-1).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
