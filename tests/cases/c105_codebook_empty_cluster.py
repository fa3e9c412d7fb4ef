"""A codebook is moved to the mean of the vectors assigned to each code; a code that nobody chose gets 0 / 0. The loss of that
step is still fine, the NaN row is chosen in the next one (argmin takes NaN as the smallest).
Source: EdoardoBotta/RQ-VAE-Recommender#27, getkeops/keops#165, subhadarship/kmeans_pytorch#41."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::div", "module": "codebook", "cause": "division by zero",
          "also_cause": ["mean over nothing"], "step": 0, "steps": 2, "kind": "nan", "silent_until": 1,
          "after": {"loss": "nan", "buffers": "nan"}}


class Codebook(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.register_buffer("codes", torch.randn(n, d))
        self.codes[3] = 50.0                       # far from everything: never chosen

    def forward(self, z):
        pick = torch.cdist(z, self.codes).argmin(1)
        q = self.codes[pick]
        with torch.no_grad():
            member = nn.functional.one_hot(pick, len(self.codes)).float()
            self.codes.copy_((member.t() @ z) / member.sum(0)[:, None])
        return z + (q - z).detach(), (z - q).pow(2).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.codebook, self.dec = nn.Linear(5, 2), Codebook(4, 2), nn.Linear(2, 5)

    def forward(self, x):
        q, commit = self.codebook(self.enc(x))
        return (self.dec(q) - x).pow(2).mean() + commit


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(40, 5)

    def step_fn(i):
        opt.zero_grad()
        loss = model(x)
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
