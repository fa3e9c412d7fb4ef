"""Label smoothing written by hand, spread over the allowed words only; forbidden words have target 0 and
log-probability -inf. The product 0 * -inf is NaN. The first batch forbids nothing. Source: sooftware/kospeech#37,
facebookresearch/pytext#1698."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::mul", "event": "nan", "module": None, "cause": "0 * inf", "step": 1,
          "steps": 2, "kind": "nan", "after": {"loss": "nan", "grads": "finite"}}


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(9, 6), nn.GRU(6, 10, batch_first=True), nn.Linear(10, 9)

    def forward(self, t, allowed):
        return self.out(self.rnn(self.emb(t))[0]).masked_fill(~allowed, float("-inf"))


def smoothed_loss(logits, target, allowed, eps=0.1):
    logp = logits.log_softmax(-1)
    q = allowed.float() * eps / allowed.sum()
    q = q.expand_as(logp).scatter(-1, target[..., None], 1 - eps)
    return -(q * logp).sum(-1).mean()


def build():
    torch.manual_seed(0)
    model = Generator()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    t = torch.randint(0, 6, (2, 3, 5))
    allowed = torch.ones(2, 9).bool()
    allowed[1, 6:] = False

    def step_fn(i):
        opt.zero_grad()
        logits = model(t[i][:, :-1], allowed[i])
        loss = smoothed_loss(logits, t[i][:, 1:], allowed[i])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
