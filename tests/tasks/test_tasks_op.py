"""The tasks at op level: the right op, module, source line and phase; memory written behind us named; silence."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


def run(task: Any, steps: int = 2) -> tuple[Any, list[Any]]:
    """Train under a scanner, as a user would; the first culprit and all alarms."""
    with nanscan.enable(task.model, level="op", on_anomaly="record") as scanner:
        for _ in range(steps):
            task.step()
        scanner.flush()
        return scanner.first, [event for event in scanner.events if event.severity in ("error", "warning")]


def assert_names(task: Any, op: str, line: str, role: str = "origin") -> Any:
    first, alarms = run(task)
    assert first is not None
    assert (first.role, first.op, first.module, first.phase) == (role, op, task.module, task.phase)
    assert (first.severity, first.step) == ("error", 0)
    assert re.fullmatch(rf".*tasks\.py:\d+  .*{re.escape(line)}.*", first.source), first.source
    assert alarms == [first], "what followed from it was told as well"
    return first


@pytest.mark.parametrize(
    ("name", "op", "line"),
    [
        ("t1", "aten::exp", "h = torch.exp(self.l3(h))"),
        ("t2", "aten::_softmax", "mixed = scores.softmax(-1) @ v"),
        ("t3a", "SqrtBackward0", "torch.sqrt(h * h)"),
        ("t3b", "AcosBackward0", "a = torch.acos(c)"),
        ("t4", "BadScaleBackward", 'g[0, 0] = g[0, 0].abs() * float("inf")'),
    ],
)
def test_names_the_op_and_the_line(tasks: ModuleType, name: str, op: str, line: str) -> None:
    assert_names(getattr(tasks, name)(), op, line)


@pytest.mark.slow
def test_names_an_op_of_an_extension(tasks: ModuleType, extension: None) -> None:
    assert_names(tasks.t5(), "nanscan_tasks::nan_scale", "torch.ops.nanscan_tasks.nan_scale(h.detach(), 0.5)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "line", "written", "call"),
    [
        (
            "t6", "aten::sigmoid", "return torch.sigmoid(h)", "self.l2(self.raw(self.l1(x)))",
            "before the read Scribbler.forward calls: scribble(h) (line ",
        ),
        (
            "t6b", "aten::add", "return h + skip", "skip = self.l1(x)",
            "after the write SkipNet.forward calls: self.mid(self.raw(skip * 2, skip)) (line ",
        ),
    ],
)  # fmt: skip
def test_names_the_reader_of_memory_written_behind_the_dispatcher(
    tasks: ModuleType, extension: None, name: str, op: str, line: str, written: str, call: str
) -> None:
    first = assert_names(getattr(tasks, name)(), op, line, role="external")
    assert first.reader == op
    module, _, number = first.last_clean.rpartition(", tasks.py:")
    assert module == "l1"
    with open(tasks.__file__) as source:
        assert written in source.read().splitlines()[int(number) - 1]
    assert any(
        text.startswith(f"finite when last written at {first.last_clean}, non-finite when read at {op} in ")
        and text.endswith("no observed write in between")
        for text in first.evidence
    )
    assert any(text.startswith(call) for text in first.evidence), first.evidence


@pytest.mark.parametrize("name", ["t8", "t8b"])
def test_silent_over_50_healthy_steps(tasks: ModuleType, name: str) -> None:
    _, alarms = run(getattr(tasks, name)(), steps=50)
    assert alarms == []
