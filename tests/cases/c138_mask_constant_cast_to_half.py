"""An additive attention mask (1 - mask) * -1e9, with the constant kept as a float32 tensor and cast to the type of
the scores. In float16 it becomes -inf, and 0 * -inf turns every *visible* position into NaN. Source: NVIDIA/apex#93,
ahrefs/ocannl#548."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::_to_copy", "module": "layer.scores", "cause": "fp16 overflow",
          "also": ["aten::to"], "step": 0, "kind": "inf", "after": {"loss": "nan", "grads": "nan"}}


class MaskedScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = torch.tensor(-1e9)            # neither parameter nor buffer: half() leaves it alone

    def forward(self, q, k, mask):
        s = q @ k.mT * q.shape[-1] ** -0.5
        return s + (1 - mask[:, None, :].to(s.dtype)) * self.low.to(s.dtype)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.scores = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), MaskedScores()

    def forward(self, x, mask):
        return self.scores(self.q(x), self.k(x), mask).softmax(-1) @ self.v(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.layer, self.head = nn.Embedding(12, 8), Layer(8), nn.Linear(8, 2)

    def forward(self, t):
        return self.head(self.layer(self.emb(t), t != 0)[:, 0])


def build():
    torch.manual_seed(0)
    model = Encoder().half()
    t, y = torch.tensor([[3, 7, 2, 0], [5, 1, 0, 0]]), torch.tensor([0, 1])

    def step_fn(i):
        loss = nn.functional.cross_entropy(model(t).float(), y)
        loss.backward()
        return loss.item()
    return model, step_fn
