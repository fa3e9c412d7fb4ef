"""HEALTHY: logit adjustment with the class frequencies of the training set, in which one class does not occur: log 0
= -inf takes it out of the softmax, no target ever asks for it, and a diagnostic of the predicted frequencies uses
xlogy. Source: jiawei-ren/BalancedMetaSoftmax-Classification#15."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 5, "kind": "none",
          "trap": "log of zero that goes into the logits, and x log x at 0 taken by xlogy"}


class BalancedLoss(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.register_buffer("counts", counts)

    def forward(self, logits, y):
        return nn.functional.cross_entropy(logits + self.counts.log(), y)


class Net(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.body, self.head = nn.Linear(5, 12), nn.Linear(12, len(counts))
        self.criterion = BalancedLoss(counts)

    def forward(self, x, y):
        logits = self.head(torch.relu(self.body(x)))
        return logits, self.criterion(logits, y)


def build():
    torch.manual_seed(0)
    x, y = torch.randn(5, 20, 5), torch.randint(3, (5, 20))
    model = Net(torch.bincount(y.flatten(), minlength=4).float())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model.surprise = []

    def step_fn(i):
        opt.zero_grad()
        logits, loss = model(x[i], y[i])
        loss.backward()
        opt.step()
        with torch.no_grad():
            wanted = torch.bincount(y[i], minlength=4) / 20
            got = logits.softmax(-1).mean(0)
            model.surprise.append((torch.xlogy(wanted, wanted) - torch.xlogy(wanted, got)).sum().item())
        return loss.item()
    return model, step_fn


def verify(r):
    ok = all(0 <= s < 10 for s in r["model"].surprise)
    return [] if ok else [f"surprise {r['model'].surprise}"]
