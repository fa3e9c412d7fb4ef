"""A determinantal point process over items of which two are the same: the kernel matrix is singular, its log-determinant is
-inf. Source: pytorch/pytorch#18448 and #154312 (logdet gives -inf), ryanchankh/mcr2#1 (such a loss becomes NaN)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::_linalg_slogdet", "module": "dpp", "cause": "log of zero",
          "also": ["aten::logdet", "aten::linalg_slogdet", "aten::slogdet", "aten::log"],
          "step": 0, "kind": "inf", "after": {"loss": "inf"}}


class LogVolume(nn.Module):
    def forward(self, f):
        return -torch.logdet(f @ f.t())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(3, 6)
        self.dpp = LogVolume()

    def forward(self, x):
        return self.dpp(self.features(x))


def build():
    torch.manual_seed(0)
    model = Net()
    x = torch.tensor([[1.0, 0, 0], [1.0, 0, 0]])

    def step_fn(i):
        loss = model(x)
        loss.backward()
        return loss.item()
    return model, step_fn
