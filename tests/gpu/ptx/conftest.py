"""The interpreter as the package nanscan_ptx, the oracle of tests/scan, nvcc or a skip."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

HERE = Path(__file__).resolve().parent

# A package of a folder without __init__.py: pytest must not take it for one, and nothing is added to sys.path.
_package = ModuleType("nanscan_ptx")
_package.__path__ = [str(HERE)]
sys.modules.setdefault(_package.__name__, _package)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_scan_tests = _load("nanscan_scan_conftest", HERE.parents[1] / "scan" / "conftest.py")
make = _scan_tests.make  # the fixture: tensors with planted specials


@pytest.fixture(scope="session")
def nvcc() -> str:
    path = shutil.which("nvcc")
    if path is None:
        pytest.skip("nvcc is not on PATH: there is no CUDA toolkit here")
    return path


@pytest.fixture(scope="session")
def agree() -> Callable[[torch.Tensor, np.ndarray], None]:
    """agree(tensor, record): fails with the first field that differs from the long double oracle."""

    def check(tensor: torch.Tensor, record: np.ndarray) -> None:
        tolerance = 1e-11 if tensor.dtype.to_real() == torch.float64 else 2e-6
        mismatch = _scan_tests.first_mismatch(tensor, record.reshape(1), tolerance)
        if mismatch:
            pytest.fail(mismatch)

    return check
