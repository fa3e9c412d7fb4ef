"""More elements than 32 bits count, in memory that is mapped and hardly touched: it reads as zeros and costs little."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from nanscan.record import RECORD_DTYPE, stats_from_record

pytestmark = pytest.mark.slow


def zeros(n_bytes: int) -> torch.Tensor:
    """[n_bytes] uint8 zeros of untouched anonymous memory."""
    return torch.frombuffer(mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16], ids=str)
def test_more_than_2_to_the_31(core, dtype):
    n = (1 << 31) + 70_001
    element_bytes = torch.empty(0, dtype=dtype).element_size()
    tensor = zeros(n * element_bytes).view(dtype)
    tensor[-1] = float("nan")
    tensor[7] = 2.0
    stats = stats_from_record(np.frombuffer(core.scan(tensor), RECORD_DTYPE))
    assert (stats.numel, stats.nan, stats.zero, stats.first_bad_index) == (n, 1, n - 2, n - 1)
    assert (stats.min, stats.max) == (0.0, 2.0)
    assert stats.mean == pytest.approx(2.0 / (n - 1), rel=1e-9)
    assert stats.norm == pytest.approx(2.0, rel=1e-6)


def test_strided_and_far_apart(core):
    tensor = zeros((1 << 32) + 8).view(torch.float8_e4m3fn)[:: 1 << 16]
    tensor[-1] = float("nan")
    stats = stats_from_record(np.frombuffer(core.scan(tensor), RECORD_DTYPE))
    assert (stats.numel, stats.first_bad_index) == ((1 << 16) + 1, 1 << 16)
