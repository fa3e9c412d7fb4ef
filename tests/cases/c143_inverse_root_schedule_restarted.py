"""A learning rate that falls with 1 / sqrt(step), computed with numpy. A warm restart sets the counter back to 0 and
the next learning rate is inf. Source: huggingface/transformers#28835, CUNY-CL/yoyodyne#300."""
import numpy as np
import torch
from torch import nn

EXPECT = {"phase": "optimizer", "op": "aten::add_", "module": None, "param": "0.weight", "cause": "bad learning rate",
          "also_cause": ["division by zero"], "also": ["aten::_foreach_add_"], "step": 2, "steps": 4, "kind": "inf",
          "after": {"loss": "nan", "params": "nan"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    clock = {"t": 1}

    def schedule(restart):
        if restart:
            clock["t"] = 0
        with np.errstate(divide="ignore"):
            lr = 0.1 / np.sqrt(np.float64(clock["t"]))
        clock["t"] += 1
        for group in opt.param_groups:
            group["lr"] = float(lr)

    def step_fn(i):
        schedule(restart=i == 2)
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
