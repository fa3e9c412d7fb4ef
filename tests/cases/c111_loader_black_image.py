"""A dataset scales each image to 0..1 by its own range with numpy; a black image gives 0 / 0. Torch gets the NaN from the
loader. Source: albumentations-team/albumentations#1742, sparf#11 (a range of zero in a data loader)."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EXPECT = {"phase": "data", "op": None, "event": "foreign", "consumer": "aten::stack", "source_tensor": "outside tensor",
          "module": None, "also_module": ["0"], "cause": "bad input data", "also_cause": ["division by zero"],
          "also": ["aten::stack", "aten::cat", "aten::convolution", "aten::conv2d"], "also_phase": ["forward"],
          "step": 1, "steps": 2, "kind": "nan", "after": {"loss": "nan", "grads": "nan"}}


class Images(Dataset):
    def __init__(self):
        self.raw = np.random.default_rng(0).integers(0, 255, (8, 1, 6, 6)).astype(np.float32)
        self.raw[5] = 0

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        a = self.raw[i]
        with np.errstate(invalid="ignore"):
            return torch.from_numpy((a - a.min()) / (a.max() - a.min()))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Images(), batch_size=4))

    def step_fn(i):
        opt.zero_grad()
        loss = (model(next(batches)) - 1).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
