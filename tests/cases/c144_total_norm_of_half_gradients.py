"""Gradients are kept in float16. Each tensor's norm still fits, the norm of those norms does not: it is inf,
clipping multiplies everything by 0, and the model stops learning without any sign of it. Source:
facebookresearch/fairscale#263, tracel-ai/burn#5699, facebookresearch/pytext#1514."""
import torch
from torch import nn

EXPECT = {"phase": "optimizer", "op": "aten::linalg_vector_norm", "module": None,
          "cause": "clipping with an infinite norm", "also_cause": ["fp16 overflow"], "also": ["aten::norm"],
          "also_phase": ["backward"], "step": 1, "steps": 2, "kind": "inf", "silent": True,
          "after": {"loss": "finite", "grads": "finite", "params": "finite"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(32, 16, generator=gen)
    targets = [torch.randn(32, 16, generator=gen), 600 * torch.randn(32, 16, generator=gen).sign()]

    def step_fn(i):
        opt.zero_grad()
        loss = (model(x.half()).float() - targets[i]).pow(2).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.item()
    return model, step_fn


def verify(r):
    grads = [p.grad for p in r["model"].parameters()]
    return [] if all((g == 0).all() for g in grads) else ["clipping left some gradient"]
