"""HEALTHY: the symmetric logarithm as a torch.where over log(1 + x) and -log(1 - x). The branch that is not taken is
the log of a negative number, so NaN is made in every forward pass, but its derivative is a finite number times 0.
Source: danijar/dreamerv3#83 and opendilab/DI-engine#652 (the usual form of symlog), own setting for the where."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 5, "kind": "none",
          "trap": "log of a negative number in the branch that torch.where does not take, with a clean gradient"}


class Symlog(nn.Module):
    def forward(self, x):
        return torch.where(x >= 0, torch.log(1 + x), -torch.log(1 - x))


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.squash, self.net, self.head = Symlog(), nn.Sequential(nn.Linear(4, 16), nn.ELU()), nn.Linear(16, 1)
        self.symlog = Symlog()

    def forward(self, obs):
        return self.symlog(10 * self.head(self.net(self.squash(obs))))[..., 0]


def build():
    torch.manual_seed(0)
    model = RewardModel()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    obs = 20 * torch.randn(5, 16, 4)
    reward = obs.sum(-1).sign() * obs.sum(-1).abs().log1p()

    def step_fn(i):
        opt.zero_grad()
        loss = (model(obs[i]) - reward[i]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
