"""HEALTHY: a GradScaler that tries a larger scale every second step. Every now and then it is too large, one step is skipped and
the scale halves: the scaler's way of finding its limit, all through training.
Source: pytorch/pytorch#26512 (growth and backoff), #98876, facebookresearch/maskrcnn-benchmark#1034 (is it normal? yes)."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 30, "kind": "none",
          "allow": ("grads",), "trap": "single skipped steps again and again, long after the start"}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=2)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    model.scales = []

    def step_fn(i):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = (out.float() - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        model.scales.append(scaler.get_scale())
        return loss.item()
    return model, step_fn


def verify(r):
    s = r["model"].scales
    drops = [i for i in range(1, len(s)) if s[i] < s[i - 1]]
    ok = len(drops) >= 3 and all(b - a > 1 for a, b in zip(drops, drops[1:])) and r["losses"][-1] < r["losses"][0]
    return [] if ok else [f"drops {drops} scales {s}"]
