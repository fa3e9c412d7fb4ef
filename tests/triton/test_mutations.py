"""The detectors: without any one barrier, or with a wrong operation, a compiled kernel must fail in the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.8.0")

from nanscan.record import DType
from nanscan_ptx.parse import PtxError
from nanscan_triton_tests.in_ptx import BARRIER, TritonPtx, replaced, without


@pytest.fixture
def noticed(make, agree):
    """noticed(kernels, kernel, dtype) -> whether a scan fails on data that goes through every pass."""

    def check(kernels: TritonPtx, kernel: str, dtype: torch.dtype) -> bool:
        # GIVEN whole blocks that the optimistic pass keeps, zeros and subnormals among them; some that it does not;
        # ragged ends of both
        block = 8192 // dtype.itemsize
        kept = make(dtype, 2 * block + 9, fraction=0.4, ends=False, mean=2.0)
        kept = torch.where(torch.isfinite(kept), kept, torch.ones_like(kept))
        tensors = [kept, make(dtype, 2 * block + 5, fraction=0.4, ends=False)]
        offs = [dtype.itemsize, 0]
        try:
            if kernel == "scan_many":
                records = kernels.scan_many(tensors, offs)
            else:
                records = [kernels.scan(tensor, off) for tensor, off in zip(tensors, offs, strict=True)]
            for tensor, record in zip(tensors, records, strict=True):
                agree(tensor, record)
        except (PtxError, pytest.fail.Exception):
            return True
        return False

    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernel", "name", "step"),
    [
        pytest.param("sm_90", "scan_one", "float32", 1, id="sm_90-f32"),
        pytest.param("sm_90", "scan_one", "float64", 4, id="sm_90-f64"),
        pytest.param("sm_90", "scan_many", "bfloat16", 4, id="sm_90-many"),
        pytest.param("sm_80", "scan_one", "float32", 3, id="sm_80-f32"),
        pytest.param("sm_100", "scan_one", "float32", 3, id="sm_100-f32"),
    ],
)
def test_each_barrier_is_missed(triton_ptx, noticed, target: str, kernel: str, name: str, step: int) -> None:
    dtype = getattr(torch, name)
    assert not noticed(triton_ptx(target), kernel, dtype)
    total = len(BARRIER.findall(triton_ptx(target).text(kernel, DType.from_torch_name(name))))
    assert total > 10
    quiet = [i for i in range(0, total, step) if not noticed(TritonPtx(target, without(i, kernel)), kernel, dtype)]
    assert quiet == [], f"of {total} barriers of {kernel}"


RULES = [
    (r"\badd\.(rn\.)?f64", "sub.f64"),
    (r"\badd\.s32", "sub.s32"),
    (r"\bsub\.f32", "add.f32"),
    (r"\bsetp\.lt\.(.32)", r"setp.le.\1"),
    (r"\bsetp\.(?:ne|eq)\.(.32)", r"setp.gt.\1"),
    (r"\b(shfl\.sync\.bfly\.b32.*), 16, 31", r"\1, 8, 31"),
    (r"\bselp\.b32(\s+%\w+), ([^,]+), ([^,]+),", r"selp.b32\1, \3, \2,"),
]


@pytest.mark.slow
def test_wrong_operations_are_noticed(triton_ptx, noticed) -> None:
    """Most of them. Extrema are not tried: one place of a vector seldom holds the tensor's."""
    text, rng = triton_ptx("sm_90").text("scan_one", DType.F32), np.random.default_rng(0)
    n_tried, quiet = 0, []
    for pattern, by in RULES:
        places = re.compile(pattern)
        n = len(places.findall(text))
        for which in rng.choice(n, min(n, 4), replace=False):
            n_tried += 1
            if not noticed(TritonPtx("sm_90", replaced(places, int(which), "scan_one", by)), "scan_one", torch.float32):
                quiet.append((by, int(which), n))
    assert n_tried > 20
    assert len(quiet) <= 0.3 * n_tried, quiet
