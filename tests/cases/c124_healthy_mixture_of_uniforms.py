"""HEALTHY: a mixture of uniform densities with learned weights. A sample outside a component's interval has log-density
log(0) = -inf there, each sample lies in at least one, logsumexp ignores the rest.
Source: pytorch/pytorch#14672 (the density is -inf outside its support, on purpose)."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 3, "kind": "none",
          "trap": "log(0) = -inf at the edge of a support, summed by logsumexp"}


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("low", torch.tensor([0.0, 1.0, 2.0]))
        self.register_buffer("high", torch.tensor([1.5, 3.0, 5.0]))

    def forward(self, x):
        parts = torch.distributions.Uniform(self.low, self.high, validate_args=False).log_prob(x[:, None])
        return -torch.logsumexp(parts + self.weight.log_softmax(0), 1).mean()


def build():
    torch.manual_seed(0)
    model = Mixture()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.tensor([0.2, 1.2, 2.5, 4.0, 1.0])

    def step_fn(i):
        opt.zero_grad()
        loss = model(x)
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
