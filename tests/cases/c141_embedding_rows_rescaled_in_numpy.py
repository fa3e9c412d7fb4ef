"""After every second step the word vectors are brought to length 1 through a numpy view of the weight. The padding
vector has length 0, numpy writes 0 / 0 into it, and torch sees nothing until the next lookup. Source: own setting;
pytorch/pytorch#97586 is a report that tensor and array share their memory."""
import numpy as np
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": None, "event": "foreign", "consumer": "aten::embedding", "module": "emb",
          "source_tensor": "emb.weight", "cause": "memory written outside the dispatcher",
          "also": ["aten::embedding"], "also_phase": ["optimizer", "data"], "step": 2, "steps": 3, "kind": "nan",
          "after": {"loss": "nan", "params": "nan"}}


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(12, 5, padding_idx=0), nn.Linear(5, 2)

    def forward(self, t):
        return self.head(self.emb(t).mean(1))


def unit_length(weight):
    rows = weight.detach().numpy()
    with np.errstate(all="ignore"):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)


def build():
    torch.manual_seed(0)
    model = BagOfWords()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    t, y = torch.randint(1, 12, (3, 4, 3)), torch.randint(2, (3, 4))
    t[:, 1, 2] = 0

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(t[i]), y[i])
        loss.backward()
        opt.step()
        if i == 1:
            unit_length(model.emb.weight)
        return loss.item()
    return model, step_fn
