"""Maximum over the nodes of each graph, started from -inf as usual. One graph of the batch has no nodes, its row stays -inf, and
the next linear layer adds +inf and -inf. Source: pyg-team/pytorch_geometric#4826 (empty input gives NaN), #1129, #523."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::addmm", "event": "nan", "module": "head", "cause": "inf - inf",
          "also_cause": ["0 * inf", "mean over nothing"], "also": ["aten::scatter_reduce", "aten::linear"], "step": 0,
          "kind": "nan", "after": {"loss": "nan", "grads": "nan"}}


class Pool(nn.Module):
    def forward(self, h, graph, n):
        start = h.new_full((n, h.shape[1]), float("-inf"))
        return start.scatter_reduce(0, graph[:, None].expand_as(h), h, "amax")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = nn.Linear(3, 8), Pool(), nn.Linear(8, 2)

    def forward(self, x, graph, n):
        return self.head(self.pool(self.body(x), graph, n))


def build():
    torch.manual_seed(0)
    model = Net()
    x, graph = torch.randn(7, 3), torch.tensor([0, 0, 1, 1, 1, 3, 3])

    def step_fn(i):
        loss = model(x, graph, 4).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
