"""HEALTHY: house prices as they are, in dollars. The loss is 1e11 and the gradient norm about 1e6, from the first
step on; clipping to 1 takes care of it (their squares still fit) and the loss falls. Source:
alibaba/Pai-Megatron-Patch#579, verl-project/verl#2282 (large norms before clipping are normal)."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 12, "kind": "none",
          "trap": "gradient norms of 1e6 that clipping handles"}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.randn(64, 6)
    price = 300_000 + 80_000 * x[:, :1] + 20_000 * x[:, 1:2].abs()
    model.norms = []

    def step_fn(i):
        opt.zero_grad()
        loss = (model(x) - price).pow(2).mean()
        loss.backward()
        model.norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True).item())
        opt.step()
        return loss.item()
    return model, step_fn


def verify(r):
    falling = all(b < a for a, b in zip(r["losses"], r["losses"][1:], strict=False))
    ok = falling and all(1e5 < n < 1e9 for n in r["model"].norms)
    return [] if ok else [f"norms {r['model'].norms} losses {r['losses']}"]
