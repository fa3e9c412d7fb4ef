"""What these tests share: helpers as packages of their own names, the oracle of tests/scan, Triton or a skip."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]


def _register(name: str, folder: Path) -> None:
    """A package of a folder without __init__.py: pytest must not take it for one, and nothing is added to sys.path."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules.setdefault(name, package)


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_register("nanscan_ptx", TESTS / "gpu" / "ptx")
_register("nanscan_triton_tests", TESTS / "triton")
_scan_tests = _load("nanscan_scan_conftest", TESTS / "scan" / "conftest.py")
make = _scan_tests.make  # the fixture: tensors with planted specials

# Moments, relative to std: a thread's few values are added in float32, all above that in float64.
TOLERANCE = 5e-6
TOLERANCE_F64 = 1e-11


@pytest.fixture(scope="session")
def triton() -> ModuleType:
    """Triton: its compiler and its binary utilities. Nothing runs on a device."""
    return pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.8.0")


@pytest.fixture(scope="session")
def triton_ptx(triton: ModuleType) -> Callable[[str], Any]:
    """target -> TritonPtx, compiled once per session."""
    from nanscan_triton_tests.in_ptx import TritonPtx

    return cache(TritonPtx)


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """agree(tensor, record): fails with the first field that differs from the long double oracle."""

    def check(tensor: torch.Tensor, record: np.ndarray, tolerance: float | None = None) -> None:
        if tolerance is None:
            tolerance = TOLERANCE_F64 if tensor.dtype.to_real() == torch.float64 else TOLERANCE
        mismatch = _scan_tests.first_mismatch(tensor, record.reshape(1), tolerance)
        if mismatch:
            pytest.fail(mismatch)

    return check
