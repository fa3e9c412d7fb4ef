"""Linear attention with positive features exp(w x), run under autocast: in float16 an exponent above 11.09 is too
large already. The longer vectors of the second batch reach it. Source: facebookresearch/xformers#96 and #98."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::exp", "module": "0.features", "cause": "exp overflow",
          "also_cause": ["fp16 overflow"], "step": 1, "steps": 2, "kind": "inf",
          "after": {"loss": "nan", "grads": "nan"}}


class Features(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.w = nn.Linear(d, m, bias=False)

    def forward(self, x):
        return torch.exp(self.w(x))              # the linear layer gives float16 under autocast


class LinearAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.features = nn.Linear(d, 3 * d), Features(d, 12)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.features(q), self.features(k)
        return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(LinearAttention(4), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(2, 6, 4)
    x[1] *= 30

    def step_fn(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x[i])
        loss = out.float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
