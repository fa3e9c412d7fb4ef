"""RMS normalisation computed in float16: the residual stream of one token reaches 300 and its square does not fit.
The mean of squares is inf, the inverse root 0, and the token leaves the layer as zeros: nothing that a user looks at
is non-finite. Source: pytorch/pytorch#133085, xlite-dev/LeetCUDA#335."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::pow", "module": "2.norm", "cause": "fp16 overflow", "step": 1, "steps": 2,
          "kind": "inf", "silent": True, "after": {"loss": "finite", "grads": "finite", "params": "finite"}}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.ff = RMSNorm(d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.ff(self.norm(x))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), Block(8), Block(8), nn.Linear(8, 10))
    with torch.no_grad():
        model[0].weight[9] = 200.0               # the token that collects large activations
        model[1].ff.bias[3] = 100.0
    model.half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    tokens = [torch.tensor([1, 4, 2, 6]), torch.tensor([9, 1, 5, 3])]

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[i][:-1]).float(), tokens[i][1:])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
