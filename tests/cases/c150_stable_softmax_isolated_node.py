"""Graph attention with a softmax written out (subtract the maximum, exp, divide). A node without neighbours has only
-inf in its row, so the maximum is -inf as well. Source: tracel-ai/burn#4697, deepmodeling/deepmd-kit#5715 (the
guard)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::sub", "event": "nan", "module": "layers.0.weigh", "cause": "inf - inf",
          "also_cause": ["fully masked softmax row"], "step": 1, "steps": 2, "kind": "both",
          "after": {"loss": "nan", "grads": "nan"}}


class Weigh(nn.Module):
    def forward(self, scores, edges):
        s = scores.masked_fill(~edges, float("-inf"))
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)


class GraphAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin, self.a, self.b, self.weigh = nn.Linear(d, d), nn.Linear(d, 1), nn.Linear(d, 1), Weigh()

    def forward(self, h, edges):
        h = self.lin(h)
        scores = nn.functional.leaky_relu(self.a(h) + self.b(h).mT, 0.2)
        return nn.functional.elu(self.weigh(scores, edges) @ h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.ModuleList([GraphAttention(5), GraphAttention(5)]), nn.Linear(5, 2)

    def forward(self, h, edges):
        for layer in self.layers:
            h = layer(h, edges)
        return self.out(h)


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(2, 4, 5), torch.randint(2, (2, 4))
    ring = torch.eye(4).roll(1, 0).bool()
    graphs = [ring | ring.T, ring | ring.T]
    graphs[1][2], graphs[1][:, 2] = False, False

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[i], graphs[i]), y[i])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
