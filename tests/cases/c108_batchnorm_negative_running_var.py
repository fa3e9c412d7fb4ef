"""Statistics of a batch norm are copied by position and running_mean lands in running_var as well. In evaluation the layer
takes the square root of a negative variance. Source: pytorch/pytorch#60624."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::native_batch_norm", "module": "1", "cause": "sqrt of a negative number",
          "step": 0, "kind": "nan", "after": {"loss": "nan", "buffers": "finite"},
          "also": ["aten::batch_norm", "aten::_batch_norm_impl_index", "aten::_native_batch_norm_legit_no_training",
                   "aten::cudnn_batch_norm"]}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 1, 6, 6) + 0.5)
    other = nn.BatchNorm2d(4)
    stats = list(model[1].buffers())
    other.running_mean, other.running_var = stats[0], stats[0]
    model[1] = other
    model.eval()
    x = torch.randn(3, 1, 6, 6)

    def step_fn(i):
        with torch.no_grad():
            return model(x)[0].sum().item()
    return model, step_fn
