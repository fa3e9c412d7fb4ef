"""Prioritised replay: importance weights are (N p) ** -beta, and one transition has priority 0 because its error was exactly
0. Zero to a negative power is inf, dividing by the largest weight makes inf / inf. The weights are made before the network is
called. Source: Guillaume-Cr/lunar_lander_per#2, werner-duvaud/muzero-general#111."""
import torch
from torch import nn

EXPECT = {"phase": "data", "op": "aten::pow", "module": None, "cause": "division by zero", "also_phase": ["forward"],
          "step": 0, "kind": "inf", "after": {"loss": "nan", "grads": "nan"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    states, returns = torch.randn(5, 3), torch.randn(5, 1)
    errors = torch.tensor([0.7, 0.2, 0.0, 1.3, 0.4])

    def step_fn(i):
        p = errors / errors.sum()
        w = (len(p) * p).pow(-0.6)
        w = w / w.max()
        loss = (w[:, None] * (model(states) - returns).pow(2)).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
