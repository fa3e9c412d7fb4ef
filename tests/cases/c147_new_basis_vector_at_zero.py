"""A subspace model keeps its basis orthonormal with a QR decomposition and grows it by one vector, which starts at
0. The decomposition itself works, its derivative divides by the zero on the diagonal of R. Source:
pytorch/pytorch#42792, #47764 (the warning in the documentation)."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "LinalgQrBackward0", "module": "basis",
          "cause": "gradient of a degenerate decomposition", "also_cause": ["division by zero"], "step": 2,
          "steps": 3, "kind": "both", "after": {"loss": "finite", "grads": "both", "params": "both"}}


class Basis(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(n, k))

    def grow(self):
        self.raw = nn.Parameter(torch.cat([self.raw.detach(), torch.zeros(len(self.raw), 1)], 1))

    def forward(self):
        return torch.linalg.qr(self.raw).Q


class Subspace(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.basis = nn.Linear(6, 6), Basis(6, 2)

    def forward(self, x):
        q = self.basis()
        return self.mix(x) @ q @ q.mT


def build():
    torch.manual_seed(0)
    model = Subspace()
    x = torch.randn(20, 6)

    def step_fn(i):
        if i == 2:
            model.basis.grow()
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        opt.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
