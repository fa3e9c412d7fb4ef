"""Messages are summed into a tensor that torch.empty returned and nobody cleared: the sum contains whatever was there (NaN is
made certain with the deterministic fill). Source: pytorch/executorch#17503 (a kernel that adds onto memory that was not set
to zero), pytorch/pytorch#1236."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::empty", "consumer": "aten::index_add_", "module": "gather",
          "cause": "uninitialised memory", "event": "uninit", "also": ["aten::index_add_", "aten::new_empty"], "step": 0,
          "kind": "nan", "after": {"loss": "nan", "grads": "nan"}}


def garbage(*size):
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty(*size)
    finally:
        torch.use_deterministic_algorithms(False)


class Gather(nn.Module):
    def forward(self, h, target, n):
        out = garbage(n, h.shape[1])
        out.index_add_(0, target, h)
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.gather, self.out = nn.Linear(3, 4), Gather(), nn.Linear(4, 1)

    def forward(self, x, target, n):
        return self.out(self.gather(self.message(x), target, n))


def build():
    torch.manual_seed(0)
    model = Net()
    x, target = torch.randn(6, 3), torch.tensor([0, 1, 1, 2, 0, 2])

    def step_fn(i):
        loss = model(x, target, 3).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
