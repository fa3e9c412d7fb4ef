"""HEALTHY: labels are NaN where an assay was not run. Training picks the measured entries; the metric subtracts everything and
takes nanmean, without gradients. Source: chemprop/chemprop#960 (missing targets as NaN), own setting for the metric."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 3, "kind": "none",
          "trap": "NaN in the targets travels through the arithmetic of a metric and is left out by nanmean"}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    y[0, 1] = y[3, :2] = y[5, 2] = float("nan")
    seen = ~y.isnan()

    def step_fn(i):
        opt.zero_grad()
        out = model(x)
        loss = (out[seen] - y[seen]).pow(2).mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            rmse = (model(x) - y).pow(2).nanmean(0).sqrt()
        return loss.item() + 0 * rmse.sum().item()
    return model, step_fn
