"""HEALTHY: a policy with forbidden actions (logits -inf). The distribution class clamps the logits inside its entropy, the
chosen actions are allowed ones. Source: pytorch/pytorch#40553 (fixed since), Stable-Baselines-Team/stable-baselines3-contrib#81."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 3, "kind": "none",
          "trap": "-inf logits, log-probabilities of -inf and 0 * -inf avoided by a clamp"}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, x, allowed):
        return self.head(self.body(x).tanh()).masked_fill(~allowed, float("-inf"))


def build():
    torch.manual_seed(0)
    model = Policy()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, reward = torch.randn(6, 4), torch.randn(6)
    allowed = torch.rand(6, 5) > 0.4
    allowed[:, 0] = True

    def step_fn(i):
        opt.zero_grad()
        pi = torch.distributions.Categorical(logits=model(x, allowed))
        action = pi.sample()
        loss = -(pi.log_prob(action) * reward).mean() - 0.01 * pi.entropy().mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
