"""HEALTHY: segmentation of images of which some show nothing: the Dice score has a smoothing term, the mean over
foreground pixels a lower bound of 1 in its denominator, the contrast of a flat image an eps under the root.
Denominators are 0 but for the guards. Source: own setting; JianghaoWu/SIFA-pytorch#4 and
pyg-team/pytorch_geometric#2106 ask for such guards."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 6, "kind": "none",
          "trap": "divisions and roots that would fail at 0 if they were not guarded"}


class Contrast(nn.Module):
    def forward(self, x):
        c = x - x.mean((-2, -1), keepdim=True)
        return c / torch.sqrt(c.pow(2).mean((-2, -1), keepdim=True) + 1e-5)


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.contrast, self.conv, self.out = Contrast(), nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        return self.out(torch.relu(self.conv(self.contrast(x))))[:, 0]


def build():
    torch.manual_seed(0)
    model = Segmenter()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(6, 3, 1, 6, 6)
    y = (x[:, :, 0] > 0.6).float()
    x[1::2, 0], y[1::2, 0] = 0.5, 0.0            # every second batch starts with a flat, empty image
    y[4] = 0.0                                   # and one batch has no foreground at all

    def step_fn(i):
        opt.zero_grad()
        logits = model(x[i])
        p = logits.sigmoid()
        dice = 1 - (2 * (p * y[i]).sum((1, 2)) + 1e-3) / ((p * y[i]).sum((1, 2)) + y[i].sum((1, 2)) + 1e-3)
        hard = (nn.functional.softplus(-logits) * y[i]).sum() / y[i].sum().clamp(min=1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[i]) + dice.mean() + hard
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
