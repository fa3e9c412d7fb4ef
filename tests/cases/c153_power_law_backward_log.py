"""Power-law compression of a spectrogram with a learned exponent and a backward written by hand: the derivative for
the exponent is y * log(x), and a silent bin makes it 0 * log(0). Source: tinygrad/tinygrad#155 (the same backward of
a power)."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "PowerLawBackward", "module": "compress", "cause": "log of zero",
          "aten": "aten::log", "also_cause": ["0 * inf", "custom backward"], "step": 1, "steps": 2, "kind": "nan",
          "after": {"loss": "finite", "grads": "nan", "params": "nan"}}


class PowerLaw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        y = x ** p
        ctx.save_for_backward(x, p, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, p, y = ctx.saved_tensors
        return g * p * x ** (p - 1), (g * y * torch.log(x)).sum()


class Compress(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return PowerLaw.apply(x, self.p)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands, self.compress, self.head = nn.Linear(9, 4, bias=False), Compress(), nn.Linear(4, 2)
        nn.init.uniform_(self.bands.weight)      # a bank of positive filters

    def forward(self, wave):
        return self.head(self.compress(torch.relu(self.bands(torch.fft.rfft(wave).abs()))))


def build():
    torch.manual_seed(0)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    wave, y = 0.1 * torch.randn(2, 5, 16), torch.randint(2, (2, 5))
    wave[1, 3] = 0.0

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(wave[i]), y[i])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
