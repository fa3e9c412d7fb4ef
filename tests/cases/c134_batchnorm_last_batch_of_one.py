"""A batch normalisation written by hand with the unbiased variance; 9 samples in batches of 4 leave a last batch of
one, whose variance divides by 0. (The built-in layer refuses such a batch.) Source: pytorch/pytorch#1381, #4534."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::var", "module": "net.1", "cause": "std of one element",
          "also_cause": ["division by zero"], "step": 2, "steps": 3, "kind": "nan",
          "after": {"loss": "nan", "grads": "nan", "buffers": "nan"}}


class HandBatchNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))

    def forward(self, x):
        mean, var = x.mean(0), x.var(0)
        self.running_var.mul_(0.9).add_(var.detach(), alpha=0.1)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 10), HandBatchNorm(10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x):
        return self.net(x)


def build():
    torch.manual_seed(0)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(zip(torch.randn(9, 6).split(4), torch.randint(3, (9,)).split(4), strict=True))

    def step_fn(i):
        x, y = batches[i]
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
