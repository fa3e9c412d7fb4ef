"""A routing policy chooses the next stop by a log_softmax over the stops that are still allowed. One instance of the
second batch has demands above the vehicle's capacity only, so no stop is allowed. Source: ai4co/rl4co#137,
alexfrom0815/Online-3D-BPP-PCT#15."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::_log_softmax", "event": "nan", "module": "decoder",
          "cause": "fully masked softmax row", "also": ["aten::log_softmax"], "also_cause": ["inf - inf"], "step": 1,
          "steps": 2, "kind": "nan", "after": {"loss": "nan", "grads": "finite"}}


class Decoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.query, self.key = nn.Parameter(torch.randn(d) / d), nn.Linear(d, d)

    def forward(self, h, allowed):
        score = 10 * torch.tanh(self.key(h) @ self.query)
        return score.masked_fill(~allowed, float("-inf")).log_softmax(-1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 8), Decoder(8)

    def forward(self, xy, demand, capacity):
        h = torch.relu(self.encoder(torch.cat([xy, demand[..., None]], -1)))
        return self.decoder(h, demand <= capacity)


def build():
    torch.manual_seed(0)
    model = Policy()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    xy = torch.rand(2, 3, 5, 2)
    demand = 0.2 + 0.6 * torch.rand(2, 3, 5)
    demand[1, 2] += 1.0

    def step_fn(i):
        opt.zero_grad()
        logp = model(xy[i], demand[i], 1.0)
        choice = demand[i].argmin(-1, keepdim=True)
        length = (xy[i].gather(1, choice[..., None].expand(-1, -1, 2))[:, 0] - 0.5).norm(dim=-1)
        loss = (length * logp.gather(1, choice)[:, 0]).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
