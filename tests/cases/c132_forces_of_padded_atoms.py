"""A potential with a learned site per kind of atom is trained on forces: the gradient of the energy is itself
differentiated. Padded atoms all sit at the origin, so two of them are 0 apart. The first derivative of the norm is
guarded there, the second is 0 / 0, and no mask helps any more. Source: atomistic-machine-learning/schnetpack#5 and
#6 (the fix)."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "DivBackward0", "aten": "aten::div", "module": None, "also_module": ["dist", ""],
          "cause": "norm gradient at zero", "also_cause": ["division by zero"], "step": 1, "steps": 2, "kind": "nan",
          "after": {"loss": "finite", "grads": "nan"}}


class Distance(nn.Module):
    def forward(self, pos, i, j):
        return (pos[:, i] - pos[:, j]).norm(dim=-1)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.site, self.dist = nn.Embedding(3, 3), Distance()
        self.pair = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, pos, kind):
        real = kind > 0                          # 0 is padding
        pos = pos + 0.1 * self.site(kind) * real[..., None]
        i, j = torch.triu_indices(pos.shape[1], pos.shape[1], 1)
        d = self.dist(pos, i, j)
        return (self.pair(d[..., None])[..., 0] * (real[:, i] & real[:, j])).sum(-1)


def build():
    torch.manual_seed(0)
    model = Potential()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    kind = [torch.tensor([[1, 2, 2, 2], [1, 2, 2, 0]]), torch.tensor([[1, 2, 2, 2], [1, 1, 0, 0]])]
    pos = [torch.randn(2, 4, 3) * (k > 0)[..., None] for k in kind]
    target = [0.1 * torch.randn(2, 4, 3) * (k > 0)[..., None] for k in kind]

    def step_fn(i):
        opt.zero_grad()
        p = pos[i].clone().requires_grad_()
        energy = model(p, kind[i]).sum()
        force = -torch.autograd.grad(energy, p, create_graph=True)[0]
        loss = (force - target[i]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
