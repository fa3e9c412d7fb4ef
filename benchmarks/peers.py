"""The ways to look for a NaN that compare_peers.py compares: what torch offers, what people write, and nanscan.

A peer watches one model. `step(train)` runs one training step under it and returns what it said, None if nothing;
`close()` takes everything off and returns what it said last. Each is used in the way that finds the most.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._debug_mode import DebugMode  # private, torch 2.13
from torch.utils._pytree import tree_leaves

import nanscan

Train = Callable[[], object]


@dataclass(frozen=True)
class Finding:
    """What a peer said. A field that it cannot tell is None; `module` is "" for the root.

    Args:
        op: ATen op, custom op or autograd node. line: number in the program's file, of the user's line.
        tensor: name of a bad parameter gradient. external: it says that no op wrote the value.
    """

    phase: str | None = None
    op: str | None = None
    module: str | None = None
    line: int | None = None
    tensor: str | None = None
    external: bool = False
    kind: str = "non-finite"

    @property
    def named(self) -> str:
        """In short, for a table's cell."""
        if self.kind != "non-finite":
            return self.kind
        module = None if self.module is None else f"`{self.module}`" if self.module else "the root"
        if self.tensor is not None:
            return f"gradient of `{self.tensor}`"
        if self.op is None:
            return f"{module}, written by no op" if self.external else str(module)
        return f"written by no op, read by `{self.op}`" if self.external else f"`{self.op}`"


class Peer:
    """Nothing at all: the plain step."""

    by_hand = ""  # what a user has to write or read to get there

    def __init__(self, model: nn.Module, file: str) -> None:
        self.model, self.file = model, file

    def step(self, train: Train) -> Finding | None:
        train()
        return None

    def close(self) -> Finding | None:
        return None

    def frame_of(self, stack: str) -> tuple[int | None, str]:
        """Innermost frame of the program in a printed stack: line number and code."""
        frames = re.findall(rf'File "{re.escape(self.file)}", line (\d+), in .*\n(.*)', stack)
        return (int(frames[-1][0]), frames[-1][1]) if frames else (None, "")


class DetectAnomaly(Peer):
    """torch.autograd.detect_anomaly: stops at the first NaN in backward; the forward line is in a warning beside it."""

    by_hand = "a `with` line; the line to look at is in a warning, not in the exception"

    def step(self, train: Train) -> Finding | None:
        with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("always")
            try:
                train()
            except RuntimeError as error:
                node = re.match(r"Function '(\w+)' returned nan values", str(error))
                if node is None:
                    raise
                stack = "".join(str(warning.message) for warning in caught)
                return Finding("backward", node[1], line=self.frame_of(stack)[0])
        return None


class BadValue(FloatingPointError):
    """What the hand-made hooks raise."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.named)
        self.found = found


class HandMade(Peer):
    """The hook that forums hand on: isfinite().all() on every module's output, then on every parameter's gradient."""

    by_hand = "about ten lines"

    def __init__(self, model: nn.Module, file: str) -> None:
        super().__init__(model, file)
        self.handles = [
            module.register_forward_hook(lambda _, args, output, name=name: self.check(name, output))
            for name, module in model.named_modules()
        ]

    @staticmethod
    def check(name: str, output: object) -> None:
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
                raise BadValue(Finding("forward", module=name))

    def step(self, train: Train) -> Finding | None:
        try:
            train()
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                    raise BadValue(Finding("backward", module=name.rpartition(".")[0], tensor=name))
        except BadValue as error:
            return error.found
        return None

    def close(self) -> Finding | None:
        for handle in self.handles:
            handle.remove()
        return None


class DebugHashes(Peer):
    """DebugMode with torch's own norm of every input and output; then the log is read for the first non-finite one.

    The first call with a non-finite output is the culprit if its inputs are finite. If they are not, nothing in the
    log made them: they were written behind the dispatcher, or came in as data.
    """

    by_hand = "five lines, and a search of the log: by eye, or some 25 lines"

    def logging(self) -> Any:
        return DebugMode.log_tensor_hashes("norm", hash_inputs=True)

    @staticmethod
    def bad(log: dict[str, Any], key: str) -> bool:
        return any(not math.isfinite(value) for value in tree_leaves(log.get(key)) if isinstance(value, float))

    def step(self, train: Train) -> Finding | None:
        with DebugMode(record_stack_trace=True, record_nn_module=True) as mode, self.logging():
            train()
        for call, module in self.with_modules(mode.logs):
            log = call.log or {}
            if not self.bad(log, "hash"):
                continue
            (line, code), backward = self.frame_of(call.stack_trace), call.fwd_stack_trace
            # In backward that is the line that calls backward(), unless a Python backward is running.
            if backward and ".backward()" in code:
                line, _ = self.frame_of(backward)
            return Finding(
                "backward" if backward else "forward",
                call.op._schema.name if hasattr(call.op, "_schema") else str(call.op),
                None if backward else module,
                line,
                external=self.bad(log, "input_hash"),
            )
        return None

    def with_modules(self, logs: list[Any]) -> Iterator[tuple[Any, str | None]]:
        """Calls with the module they are indented under; DebugMode writes module names with the root's class first."""
        inside: list[tuple[int, str]] = []
        for entry in logs:
            while inside and inside[-1][0] >= entry.call_depth:
                inside.pop()
            if getattr(entry, "header", None) == "nn.Mod":
                inside.append((entry.call_depth, entry.tag.partition(".")[2]))
            elif hasattr(entry, "op"):
                yield entry, inside[-1][1] if inside else None


class DebugHook(DebugHashes):
    """DebugMode with dispatch hooks of one's own, that look for NaN and +Inf only: a mask's -Inf is passed over."""

    by_hand = "some 40 lines: hooks for its calls, and the search"

    def logging(self) -> Any:
        return DebugMode.dispatch_hooks(
            pre_log_hook=lambda func, types, args, kwargs, call: {"input_hash": self.worst(func, (args, kwargs))},
            log_hook=lambda func, types, args, kwargs, result: {"hash": self.worst(func, result)},
        )

    @staticmethod
    def worst(func: object, values: object) -> float:
        """Infinite if there is a NaN or +Inf; torch.empty() and its kind hold anything."""
        tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
        if "empty" in str(func):
            return 0.0
        return math.inf if any((value.isnan() | value.isposinf()).any() for value in map(real, tensors)) else 0.0


def real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value) if value.is_complex() else value


class Nanscan(Peer):
    """nanscan.enable(model), module level."""

    level = "module"
    by_hand = "one line"

    def __init__(self, model: nn.Module, file: str) -> None:
        super().__init__(model, file)
        self.scanner = nanscan.enable(model, level=self.level, on_anomaly="record")

    def step(self, train: Train) -> Finding | None:
        train()
        self.scanner.poll()
        return self.first()

    def close(self) -> Finding | None:
        self.scanner.flush()
        found = self.first()
        self.scanner.close()
        return found

    def first(self) -> Finding | None:
        alarms = [event for event in self.scanner.events if event.severity in ("error", "warning")]
        if not alarms:
            return None
        event = min(alarms, key=lambda event: (event.step, event.seq))
        if not event.nonfinite:
            return Finding(event.phase, kind=event.kind)
        place, _, _ = (event.source or "").partition("  ")
        file, _, line = place.rpartition(":")
        gradient = event.tensor if event.tensor_kind == "gradient" else None
        return Finding(
            event.phase,
            event.op,
            event.module,
            int(line) if file == self.file else None,
            gradient,
            event.role == "external",
        )


class NanscanOp(Nanscan):
    """nanscan.enable(model, level="op")."""

    level = "op"


class NanscanOpInTurn(NanscanOp):
    """The same beside other models in one process: ops are observed for the whole process, so only during its own step.

    Ending it each step forgets what is known, so parameters are scanned once more: that counts against us.
    """

    def __init__(self, model: nn.Module, file: str) -> None:
        super().__init__(model, file)
        self.scanner._core.set_op_level(False)

    def step(self, train: Train) -> Finding | None:
        self.scanner._core.set_op_level(True)
        train()
        self.scanner._core.set_op_level(False)
        return None


PEERS: dict[str, type[Peer]] = {
    "detect_anomaly": DetectAnomaly,
    "hand-made hooks": HandMade,
    "DebugMode, its hashes": DebugHashes,
    "DebugMode, own hooks": DebugHook,
    "nanscan, module level": Nanscan,
    "nanscan, op level": NanscanOp,
}
