"""Phase correlation keeps the direction of each complex Fourier coefficient: F / |F|. A patch without any content has F = 0,
and complex 0 / 0 is NaN. Source: pytorch/pytorch#151182 (NaN when a spectrum is rebuilt from modulus and phase)."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": "aten::div", "module": "align", "cause": "division by zero", "step": 0,
          "kind": "nan", "after": {"loss": "nan", "grads": "nan"}}


class Align(nn.Module):
    def forward(self, a, b):
        cross = torch.fft.rfft(a) * torch.fft.rfft(b).conj()
        return torch.fft.irfft(cross / cross.abs(), n=a.shape[-1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.align = Align()

    def forward(self, a, b):
        return self.align(self.filter(a), b)


def build():
    torch.manual_seed(0)
    model = Net()
    a, b = torch.randn(3, 1, 16), torch.randn(3, 1, 16)
    b[1] = 0

    def step_fn(i):
        loss = (model(a, b) - 1).pow(2).mean()
        loss.backward()
        return loss.item()
    return model, step_fn
