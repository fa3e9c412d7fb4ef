"""HEALTHY: attention with linear distance penalties and a causal window of three tokens, its softmax written out.
The scores are full of -inf and the first token sees only itself, but every row keeps one live entry, so the maximum
is always finite. Source: ofirpress/attention_with_linear_biases#9 (such a mask), the harmless side of
tracel-ai/burn#4697."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 4, "kind": "none",
          "allow": ("buffers",),
          "trap": "rows of -inf with a single live entry; -inf minus a finite maximum"}


class WindowAttention(nn.Module):
    def __init__(self, d, heads, n, window):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
        back = torch.arange(n)[:, None] - torch.arange(n)
        slope = 2.0 ** -torch.arange(1, heads + 1)
        bias = -slope[:, None, None] * back
        self.register_buffer("bias", bias.masked_fill((back < 0) | (back >= window), float("-inf")))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * q.shape[-1] ** -0.5 + self.bias
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return self.out((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).reshape(b, n, d))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.attn, self.head = nn.Embedding(11, 8), WindowAttention(8, 2, 6, 3), nn.Linear(8, 11)

    def forward(self, t):
        h = self.emb(t)
        return self.head(h + self.attn(h))


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    t = torch.randint(11, (4, 3, 7))

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(t[i][:, :-1]).flatten(0, 1), t[i][:, 1:].flatten())
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
