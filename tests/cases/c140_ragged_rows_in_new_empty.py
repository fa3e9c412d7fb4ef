"""Sequences of different length are projected one by one into a tensor made with new_empty; what lies behind the end
of a short sequence is never written, and the mean over time reads it. The first two batches are full (garbage is
made certain with the deterministic fill). Source: pytorch/pytorch#24263, pytorch/ao#1157 (zeros instead of empty)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::new_empty", "consumer": "aten::mean", "consumer_module": "pool",
          "module": "ragged", "also_module": ["pool"], "cause": "uninitialised memory", "event": "uninit",
          "also": ["aten::mean", "aten::empty"], "step": 2, "steps": 3, "kind": "nan",
          "after": {"loss": "nan", "grads": "nan"}}


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(3, 6)

    def forward(self, x, lengths):
        torch.use_deterministic_algorithms(True)
        out = x.new_empty(len(lengths), max(lengths), 6)
        torch.use_deterministic_algorithms(False)
        for b, n in enumerate(lengths):
            out[b, :n] = self.proj(x[b, :n])
        return out


class MeanOverTime(nn.Module):
    def forward(self, h):
        return h.mean(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ragged, self.pool, self.head = Ragged(), MeanOverTime(), nn.Linear(6, 2)

    def forward(self, x, lengths):
        return self.head(self.pool(self.ragged(x, lengths)))


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(3, 2, 4, 3), torch.tensor([0, 1])
    lengths = [[4, 4], [4, 4], [4, 2]]

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[i], lengths[i]), y)
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
