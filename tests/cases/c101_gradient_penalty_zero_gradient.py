"""Gradient penalty of a critic: for one sample every ReLU is off, the gradient with respect to it is exactly zero, and its
length is taken as sqrt(sum of squares). The penalty is finite, the second backward pass divides by 2 sqrt(0).
Source: pytorch/pytorch#2534, keras-team/keras-io#910."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "SqrtBackward0", "aten": "aten::div", "module": None,
          "cause": "sqrt gradient at zero", "also_cause": ["norm gradient at zero", "0 * inf in backward"], "step": 0,
          "kind": "inf", "after": {"loss": "finite", "grads": "nan"}}


def build():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        critic[0].bias.sub_(1.0)
    x = torch.randn(6, 4)
    x[2] = 0                                       # a black image: below every threshold

    def step_fn(i):
        mixed = x.clone().requires_grad_()
        g, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        length = g.pow(2).sum(1).sqrt()
        loss = critic(x).mean() + 10 * (length - 1).pow(2).mean()
        loss.backward()
        return loss.item()
    return critic, step_fn
