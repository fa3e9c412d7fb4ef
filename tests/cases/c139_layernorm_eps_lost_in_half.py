"""A layer normalisation written by hand with eps = 1e-8, run in float16, where 1e-8 is 0. The zero vectors of the
padding token have variance 0, so the inverse root is inf. The first batch has no padding. The loss ignores the
padded position and stays finite. Source: pytorch/pytorch#41527, deepspeedai/DeepSpeed#581,
tensorflow/tensorflow#24979."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::rsqrt", "module": "norm", "cause": "division by zero",
          "also_cause": ["fp16 underflow"], "step": 1, "steps": 2, "kind": "inf",
          "after": {"loss": "finite", "grads": "nan"}}


class HandLayerNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        var = (centred * centred).mean(-1, keepdim=True)
        return centred * torch.rsqrt(var + 1e-8) * self.weight + self.bias


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8, padding_idx=0)
        self.norm, self.head = HandLayerNorm(8), nn.Linear(8, 4)

    def forward(self, t):
        return self.head(self.norm(self.emb(t)))


def build():
    torch.manual_seed(0)
    model = Tagger().half()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = [torch.tensor([[4, 9, 2], [7, 3, 11]]), torch.tensor([[5, 1, 8], [6, 2, 0]])]
    tags = torch.tensor([[0, 1, 2], [3, 1, -100]])

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(batches[i]).float().flatten(0, 1), tags.flatten())
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
