"""CTC on short word images: five frames, five letters. That is enough, except for a word with a double letter, which
needs a blank between the two. Source: githubharald/SimpleHTR#28, SeanNaren/warp-ctc#29."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::_ctc_loss", "module": None, "cause": "infeasible CTC target", "step": 2,
          "steps": 3, "kind": "inf", "also": ["aten::ctc_loss"], "also_cause": ["bad input data"],
          "after": {"loss": "inf", "grads": "nan", "params": "nan"}}


class WordReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 16, 3, stride=2, padding=1)
        self.out = nn.Linear(16, 27)

    def forward(self, image):
        return self.out(torch.relu(self.conv(image)).permute(2, 0, 1)).log_softmax(-1)


def spell(word):
    return torch.tensor([ord(c) - ord("a") + 1 for c in word])


def build():
    torch.manual_seed(0)
    model = WordReader()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    words = [("stone", "mango"), ("light", "bread"), ("lemon", "happy")]
    images = torch.randn(3, 2, 6, 10)

    def step_fn(i):
        opt.zero_grad()
        logp = model(images[i])
        target = torch.stack([spell(w) for w in words[i]])
        loss = nn.functional.ctc_loss(logp, target, torch.full((2,), len(logp)), torch.full((2,), 5))
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
