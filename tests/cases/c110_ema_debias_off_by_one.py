"""A moving average of the weights starts at zero and is divided by 1 - decay ** step; the counter is raised too late, so the
first correction divides by 1 - 1. The training loss is fine, evaluation with the averaged weights is not.
Source: karpathy/nanochat#818 (the exponent off by one), huggingface/pytorch-image-models#1182, PaddlePaddle/Paddle#17677."""
import torch
from torch import nn
from torch.func import functional_call

EXPECT = {"phase": "optimizer", "op": "aten::div", "module": None, "cause": "division by zero",
          "also_phase": ["forward"], "step": 0, "kind": "inf", "after": {"loss": "nan", "params": "finite"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    average = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    x, y = torch.randn(8, 3), torch.randn(8, 1)

    def step_fn(i):
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        with torch.no_grad():
            for k, p in model.named_parameters():
                average[k].lerp_(p, 0.1)
            weights = {k: a / (1 - 0.9 ** i) for k, a in average.items()}
            return (functional_call(model, weights, (x,)) - y).pow(2).mean().item()
    return model, step_fn
