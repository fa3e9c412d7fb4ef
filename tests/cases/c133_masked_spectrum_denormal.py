"""Speech enhancement: the network's mask closes almost completely over a very quiet recording, so the masked
spectrum is denormal (1e-41) but not 0. The magnitude is fine, its derivative z / |z| is not. Exact silence would do
no harm. Source: csteinmetz1/auraloss#12, pytorch/pytorch#46155."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "AbsBackward0", "module": "magnitude", "cause": "gradient of |z| near zero",
          "also_cause": ["division by zero"], "step": 1, "steps": 2, "kind": "nan",
          "after": {"loss": "finite", "grads": "nan"}}


class Magnitude(nn.Module):
    def forward(self, z):
        return z.abs()


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.magnitude = nn.Linear(5, 5), Magnitude()

    def forward(self, spec):
        loudness = torch.log(spec.detach().abs() + 1e-20)
        return self.magnitude(spec * torch.sigmoid(self.gate(loudness)))


def build():
    torch.manual_seed(0)
    model = Enhancer()
    with torch.no_grad():
        model.gate.weight.copy_(1.4 * torch.eye(5))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    frames = torch.randn(3, 8)
    recordings = [frames, 1e-17 * frames]

    def step_fn(i):
        opt.zero_grad()
        spec = torch.fft.rfft(recordings[i])
        loss = (model(spec) - spec.abs()).abs().mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
