"""HEALTHY: early stopping keeps the best validation loss in a buffer that starts at inf ("nothing yet") and shrinks to the
first measured value; another one for the worst starts at -inf. Source: own setting (usual practice of early stopping)."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 4, "kind": "none",
          "allow": ("buffers",), "trap": "inf in buffers that stands for 'no value yet'"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)
        self.register_buffer("best", torch.full((1,), float("inf")))
        self.register_buffer("highest", torch.full((4,), float("-inf")))

    def forward(self, x):
        out = self.fc(x)
        with torch.no_grad():
            self.highest = torch.maximum(self.highest, out.detach().amax(0).expand(4))
        return out


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(8, 3), torch.randn(8, 1)

    def step_fn(i):
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        if i:                                       # validation starts one epoch later
            with torch.no_grad():
                now = (model(x) - y).pow(2).mean()
                if now < model.best:
                    model.best.copy_(now)
        return loss.item()
    return model, step_fn
