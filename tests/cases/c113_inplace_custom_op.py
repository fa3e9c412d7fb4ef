"""A registered operator that works in place and returns nothing: it divides each row by its sum, and one row sums to zero. Only
the schema says that its argument is written. Source: own setting; nerfstudio-project/gsplat#248 and
pyg-team/pytorch_geometric#61 report NaN out of such normalisations."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "case113::normalise_rows_", "module": "1", "cause": "division by zero",
          "also_cause": ["custom kernel", "unknown"], "step": 0, "kind": "nan", "after": {"loss": "nan", "grads": "nan"}}

LIB = torch.library.Library("case113", "FRAGMENT")
try:
    LIB.define("normalise_rows_(Tensor(a!) x) -> ()")
    LIB.impl("normalise_rows_", lambda x: x.numpy().__itruediv__(x.numpy().sum(1, keepdims=True)) is None or None, "CPU")
except RuntimeError:                                # the file was loaded before
    pass


class Normalise(nn.Module):
    def forward(self, counts):
        x = counts.clone()
        torch.ops.case113.normalise_rows_(x)
        return x


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), Normalise(), nn.Linear(4, 2))
    counts = torch.randint(1, 5, (5, 4)).float()
    counts[3] = 0

    def step_fn(i):
        loss = model(counts).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
