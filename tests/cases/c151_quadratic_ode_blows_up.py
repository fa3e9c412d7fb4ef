"""A neural ODE whose field has a quadratic term, integrated with fixed Euler steps. A start value outside the
trained range makes the trajectory square itself again and again until float32 ends. Source:
patrick-kidger/NeuralCDE#2, rtqichen/torchdiffeq#58."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::mul", "module": "field", "cause": "float32 overflow",
          "also_cause": ["explosion"], "step": 1, "steps": 2, "kind": "inf", "after": {"loss": "nan", "grads": "nan"}}


class Field(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.linear, self.quadratic = nn.Linear(d, d), nn.Linear(d, d, bias=False)

    def forward(self, z):
        return self.linear(z) + self.quadratic(z * z)


class NeuralODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field(3)

    def forward(self, z, steps=12, dt=0.2):
        for _ in range(steps):
            z = z + dt * self.field(z)
        return z


def build():
    torch.manual_seed(0)
    model = NeuralODE()
    with torch.no_grad():
        model.field.quadratic.weight.copy_(0.3 * torch.eye(3))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    start = [0.2 * torch.randn(4, 3), 0.2 * torch.randn(4, 3)]
    start[1][2] = 40.0
    target = torch.zeros(4, 3)

    def step_fn(i):
        opt.zero_grad()
        loss = (model(start[i]) - target).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
