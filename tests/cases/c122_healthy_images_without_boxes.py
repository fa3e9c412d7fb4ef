"""HEALTHY: detection loss over a batch where some images, and one whole batch, hold no object. Empty tensors go through
concatenation, smooth L1 with reduction "sum", the maximum with a start value; the sum is divided by max(1, count).
Source: the counterpart of pytorch/pytorch#50224 (mean over no positives), pyg-team/pytorch_geometric#2895."""
import torch
from torch import nn

EXPECT = {"phase": None, "op": None, "module": None, "cause": None, "step": None, "steps": 3, "kind": "none",
          "trap": "empty tensors in the loss"}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(3, 4)
    batches = [[torch.tensor([0]), torch.tensor([], dtype=torch.long)], [torch.tensor([], dtype=torch.long)] * 2,
               [torch.tensor([1, 2]), torch.tensor([0])]]
    boxes = torch.randn(3, 4)

    def step_fn(i):
        opt.zero_grad()
        out = model(x)
        pred = torch.cat([out[idx] for idx in batches[i]])
        want = torch.cat([boxes[idx] for idx in batches[i]])
        loss = nn.functional.smooth_l1_loss(pred, want, reduction="sum") / max(1, len(pred)) + 1e-3 * out.pow(2).mean()
        loss.backward()
        opt.step()
        widest = torch.cat([pred.detach().flatten(), torch.zeros(1)]).max()
        return loss.item() + 0 * widest.item()
    return model, step_fn
