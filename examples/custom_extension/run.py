"""Find a NaN that a C++ extension made: as a registered op, as a raw call, and as a raw call with a name.

python run.py              # builds demo_ext.cpp (C++ compiler, ninja), trains three times, prints three reports
python run.py wrapped --level module
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nanscan

SOURCE = Path(__file__).with_name("demo_ext.cpp")


def build(folder: str | None = None) -> Any:
    """Compile and import the extension; loading it also registers torch.ops.demo_ext.rms_scale."""
    from torch.utils.cpp_extension import load

    return load("demo_ext", [str(SOURCE)], build_directory=folder, extra_cflags=["-O1"])


class RegisteredOp(nn.Module):
    """(a) The dispatcher knows the op, so it is named like any other."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.ops.demo_ext.rms_scale(h.detach())


class RawCall(nn.Module):
    """(b) Nobody sees the call: `smooth_into` writes into `out` behind everybody's back."""

    def __init__(self, ext: Any) -> None:
        super().__init__()
        self.ext = ext

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(h)
        self.ext.smooth_into(h.detach(), out)
        return h + out


class Net(nn.Module):
    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.lower, self.mix, self.upper = nn.Linear(8, 8, bias=False), mix, nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.upper(self.mix(self.lower(x)))


def make(way: str, ext: Any) -> Net:
    """The model for one of "registered", "raw" and "wrapped"."""
    torch.manual_seed(0)
    if way == "registered":
        return Net(RegisteredOp())
    # (c) The same module with one word more: now its calls have a name.
    return Net(RawCall(nanscan.extension(ext) if way == "wrapped" else ext))


def train(model: Net, level: str, steps: int = 2) -> nanscan.Scanner:
    """A few steps on a batch whose last row is padding: zeros."""
    x = torch.randn(4, 8)
    x[-1] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nanscan.enable(model, level=level, on_anomaly="record") as scanner:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return scanner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=["registered", "raw", "wrapped"])
    parser.add_argument("--level", choices=("op", "module"), default="op")
    args = parser.parse_args()
    ext = build()
    for way in args.ways:
        scanner = train(make(way, ext), args.level)
        print(f"--- {way}\n{scanner.report()}")
        for text in scanner.first.evidence:
            print(f"  - {text}")


if __name__ == "__main__":
    main()
