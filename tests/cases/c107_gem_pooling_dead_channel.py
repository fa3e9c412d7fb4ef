"""Generalised-mean pooling without the lower clamp: a channel that is zero everywhere has mean 0, and the outer power 1/p with
a learned p has an infinite slope there. Source: filipradenovic/cnnimageretrieval-pytorch#73 (what the clamp is for),
asteroid-team/asteroid#121, pytorch/pytorch#6765 (the same in LP pooling)."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "PowBackward1", "module": "pool", "cause": "power gradient at zero", "step": 0,
          "kind": "inf", "after": {"loss": "finite", "grads": "nan"}}


class GeM(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x.pow(self.p).mean((-2, -1)).pow(1 / self.p)


def build():
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 3, 3))
    model.add_module("relu", nn.ReLU())
    model.add_module("pool", GeM())
    model.add_module("head", nn.Linear(3, 2))
    with torch.no_grad():
        model.conv.bias[1] = -30.0
    x = torch.randn(2, 1, 6, 6)

    def step_fn(i):
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
