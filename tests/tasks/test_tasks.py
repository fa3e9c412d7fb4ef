"""The tasks that peers are compared on, at module level: the right module is named, healthy training stays silent."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import nanscan


def run(task: Any, steps: int = 1) -> tuple[Any, list[Any]]:
    """Train under a scanner, as a user would; the first culprit and all alarms."""
    with nanscan.enable(task.model, on_anomaly="record") as scanner:
        for _ in range(steps):
            task.step()
        scanner.flush()
        return scanner.first, [event for event in scanner.events if event.severity in ("error", "warning")]


def assert_names_its_module(task: Any) -> None:
    first, _ = run(task)
    assert first is not None
    assert (first.severity, first.module, first.phase, first.step) == ("error", task.module, task.phase, 0)


@pytest.mark.parametrize("name", ["t1", "t2", "t4"])
def test_names_the_module(tasks: ModuleType, name: str) -> None:
    assert_names_its_module(getattr(tasks, name)())


@pytest.mark.parametrize("name", ["t3a", "t3b"])
def test_names_the_module_of_a_gradient_born_in_the_root(tasks: ModuleType, name: str) -> None:
    assert_names_its_module(getattr(tasks, name)())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "t6", "t6b"])
def test_names_the_module_behind_an_extension(tasks: ModuleType, extension: None, name: str) -> None:
    assert_names_its_module(getattr(tasks, name)())


@pytest.mark.slow
def test_names_the_module_of_the_full_size_gpt(tasks: ModuleType) -> None:
    assert_names_its_module(tasks.t2(small=False))


@pytest.mark.parametrize("name", ["t8", "t8b"])
def test_silent_over_200_healthy_steps(tasks: ModuleType, name: str) -> None:
    _, alarms = run(getattr(tasks, name)(), steps=200)
    assert alarms == []


@pytest.mark.slow
def test_silent_over_200_healthy_steps_of_the_full_size_gpt(tasks: ModuleType) -> None:
    _, alarms = run(tasks.t8(small=False), steps=200)
    assert alarms == []


@pytest.mark.parametrize(("slow", "lead"), [pytest.param(False, 7, id="fast"), pytest.param(True, 85, id="slow")])
def test_warns_of_an_explosion_before_the_first_non_finite_value(tasks: ModuleType, slow: bool, lead: int) -> None:
    task, lr_at = tasks.t7(slow)
    with nanscan.enable(task.model, on_anomaly="record") as scanner:
        bad = tasks.first_bad_step(task, lr_at, 200, scanner.poll)
        scanner.flush()
        warned = [event.step for event in scanner.events if event.kind == "explosion"]
    assert bad is not None
    assert warned
    assert bad - warned[0] >= lead
