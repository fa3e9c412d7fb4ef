"""Adagrad with eps = 0: embedding rows that were not looked up have gradient 0 and a history of 0, so their update is 0 / 0.
Nothing shows until such a row is used. Source: ml-explore/mlx#3712 (review), google-deepmind/optax#1553,
lisa-lab/pylearn2#1496."""
import torch
from torch import nn

EXPECT = {"phase": "optimizer", "op": "aten::addcdiv_", "module": None, "cause": "division by zero",
          "also_cause": ["optimizer eps underflow"], "also": ["aten::_foreach_addcdiv_", "aten::div"], "step": 0,
          "kind": "nan", "silent": True, "after": {"loss": "finite", "grads": "finite", "params": "nan"}}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 1))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1, eps=0.0)
    tokens = torch.tensor([[0, 1], [2, 1], [3, 0]])

    def step_fn(i):
        opt.zero_grad()
        loss = (model(tokens) - 1).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
