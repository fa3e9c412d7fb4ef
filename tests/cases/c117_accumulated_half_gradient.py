"""Two micro-batches in pure half precision: each gradient fits (40000), their sum in .grad does not. No operator of the model
and no node makes the inf, adding to .grad does. Source: NVIDIA/Megatron-LM#4028 and huggingface/accelerate#2035 (why
gradients are accumulated in fp32), deepspeedai/DeepSpeed#1773."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "torch::autograd::AccumulateGrad", "module": "0", "cause": "fp16 overflow",
          "also_cause": ["loss scale too large"], "also": ["AccumulateGrad", "aten::add_", "aten::add"],
          "step": 0, "kind": "inf", "no_dispatch_mode": True, "after": {"loss": "finite", "grads": "inf"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).half()
    x = torch.full((2, 4, 2), 100.0).half()

    def step_fn(i):
        model.zero_grad()
        total = 0.0
        for part in x:
            loss = model(part).float().mean()
            (loss * 400).backward()
            total += loss.item()
        return total
    return model, step_fn


def truth(r):
    """A dispatch mode does not see the sum being made: take the gradients apart instead."""
    model = r["model"]
    weight, total = model[0].weight, model[0].weight.grad
    parts = [torch.autograd.grad(model(torch.full((4, 2), 100.0).half()).float().mean() * 400, weight)[0] for _ in "ab"]
    if all(p.isfinite().all() for p in parts) and total.isinf().all():
        return dict(type="origin", phase="backward", op=EXPECT["op"], module="0", step=0, what="inf")
    return None
