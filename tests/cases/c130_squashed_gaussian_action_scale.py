"""The log-probability of a tanh-squashed action is corrected with log(1 - a^2), but a has been stretched to the
action range (scale 2) before: as soon as an action leaves [-1, 1] the argument is negative. Small observations hide
it for two steps. Source: philtabor/Actor-Critic-Methods-Paper-To-Code#7, cpnota/autonomous-learning-library#139."""
import math

import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::log", "module": None, "cause": "log of a negative number", "step": 2,
          "steps": 3, "kind": "nan", "after": {"loss": "nan", "grads": "finite", "params": "finite"}}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.mean, self.log_std = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.log_std(h).clamp(-5, -2)


def build():
    torch.manual_seed(0)
    actor = Actor()
    with torch.no_grad():
        actor.mean.bias.zero_()
        actor.mean.weight.fill_(0.5)
        actor.body[0].bias.zero_()
        actor.body[0].weight.abs_()
    opt = torch.optim.SGD(actor.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1)
    rollouts = [0.05 * torch.ones(8, 3), -0.05 * torch.ones(8, 3), 2.0 * torch.ones(8, 3)]

    def log_prob(obs, scale=2.0):
        mean, log_std = actor(obs)
        noise = 0.1 * torch.randn(mean.shape, generator=gen)
        action = scale * torch.tanh(mean + log_std.exp() * noise)
        normal = -0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
        return normal - torch.log(1 - action.pow(2) + 1e-6)

    def step_fn(i):
        opt.zero_grad()
        loss = 0.2 * log_prob(rollouts[i]).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return actor, step_fn
