"""The tasks, loaded by their path: test helpers cannot be imported by name under --import-mode=importlib."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="session")
def tasks() -> ModuleType:
    """tests/tasks/tasks.py."""
    path = Path(__file__).parent / "tasks.py"
    spec = importlib.util.spec_from_file_location("nanscan_tasks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def extension(tasks: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The compiled extension of T5 and T6."""
    tasks.build_extension(str(tmp_path_factory.mktemp("extension")))


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
