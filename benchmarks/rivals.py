"""The ways to look for NaN that the step benchmarks compare, each around a model, optimizer and batch of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

import nanscan


class Work(NamedTuple):
    """What is trained: model(ids, targets) -> loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ids: torch.Tensor  # [B, T]
    targets: torch.Tensor  # [B, T]


class Rival:
    """Nobody looks: the plain step."""

    def __init__(self, work: Work) -> None:
        self.model, self.optimizer, self.ids, self.targets = work

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.ids, self.targets).backward()
        self.optimizer.step()


class HandMade(Rival):
    """What people write: isfinite().all() on every output and the gradient that reaches it, and on all gradients."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        for module in self.model.modules():
            module.register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        self._check(output)
        if output.requires_grad:
            output.register_hook(self._check)

    @staticmethod
    def _check(value: torch.Tensor) -> None:
        if not torch.isfinite(value).all():
            raise FloatingPointError("non-finite")

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.ids, self.targets).backward()
        for parameter in self.model.parameters():
            self._check(parameter.grad)
        self.optimizer.step()


class DetectAnomaly(Rival):
    """torch.autograd.detect_anomaly: NaN only, backward only."""

    def step(self) -> None:
        with torch.autograd.set_detect_anomaly(True):
            super().step()


class Nanscan(Rival):
    """nanscan.enable(model), module level."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.scanner = nanscan.enable(self.model, on_anomaly="record")


class NanscanOp(Rival):
    """nanscan.enable(model, level="op"): every op and every autograd node."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.scanner = nanscan.enable(self.model, level="op", on_anomaly="record")
        self.scanner._core.set_op_level(False)

    def step(self) -> None:
        # Ops are observed for the whole process, so the other rivals' would be too. Beginning and ending it each step
        # forgets the table: every parameter is scanned once more, which counts against us.
        core = self.scanner._core
        core.set_op_level(True)
        super().step()
        core.set_op_level(False)


RIVALS: dict[str, type[Rival]] = {
    "plain": Rival,
    "plain again": Rival,
    "nanscan module": Nanscan,
    "nanscan op": NanscanOp,
    "hand-made hooks": HandMade,
    "detect_anomaly": DetectAnomaly,
}
