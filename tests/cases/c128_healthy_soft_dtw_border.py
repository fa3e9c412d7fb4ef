"""HEALTHY: soft dynamic time warping. The border of the table is inf ("cannot come from there"), the soft minimum
-logsumexp(-.) turns it into a weight of zero. Source: own setting (the usual form of the recursion); compare
pytorch/pytorch#31829, which needs every term to be infinite."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 2, "kind": "none",
          "trap": "+inf as the neutral element of a soft minimum"}


class SoftDTW(nn.Module):
    def forward(self, d):
        n, m = d.shape
        inf = d.new_full((), float("inf"))
        last = [d.new_zeros(())] + [inf] * m
        for i in range(n):
            row = [inf]
            for j in range(m):
                came = torch.stack([last[j], last[j + 1], row[j]])
                row.append(d[i, j] - torch.logsumexp(-came, 0))
            last = row
        return last[m]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.dtw = nn.Linear(2, 3), SoftDTW()

    def forward(self, a, b):
        return self.dtw((self.body(a)[:, None] - self.body(b)[None]).pow(2).sum(-1))


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    a, b = torch.randn(4, 2), torch.randn(5, 2)

    def step_fn(i):
        opt.zero_grad()
        loss = model(a, b)
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
