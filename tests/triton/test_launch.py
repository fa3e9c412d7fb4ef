"""The host's part: how tensors are cut into chunks, what is refused, and the way into the record."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nanscan.backends.eager import UnscannableTensor
from nanscan.record import DType, new_record


@pytest.fixture(scope="module")
def launch(triton):
    from nanscan.triton_kernels import launch

    return launch


@pytest.mark.parametrize(("dtype", "n"), [(DType.F32, 8192), (DType.F8_E5M2, 32768), (DType.C128, 2048)])
def test_32_kib_are_one_chunk_at_any_alignment(launch, dtype: DType, n: int) -> None:
    form = launch.format_of(dtype)
    assert launch.n_chunks_of(1, form)[0] == 1
    assert launch.n_chunks_of(n - 16 // form.BYTES, form)[0] == 1
    assert launch.n_chunks_of(n + 1, form)[0] == 2


def test_a_plan_of_many(launch) -> None:
    headers = np.concatenate([new_record() for _ in range(4)])
    headers["dtype"] = [DType.F32, DType.F16, DType.F32, DType.F32]
    headers["call"] = [11, 12, 13, 14]
    plans = launch.plan_many([4096, 8192, 0, 12288], [20_000, 5, 0, 7], headers)
    by_format = {plan.form.FORMAT: plan for plan in plans}
    assert sorted(by_format) == [DType.F32, DType.F16]
    plan = by_format[DType.F32]
    # address, n, first chunk, chunks, blocks per chunk, slot; then the header's words
    assert plan.table[:, :6].tolist() == [[4096, 20_000, 0, 3, 4, 0], [0, 0, 3, 1, 4, 2], [12288, 7, 4, 1, 4, 3]]
    assert plan.table[:, 7].tolist() == [11, 13, 14]
    assert plan.chunk_row.tolist() == [0, 0, 0, 1, 2]
    assert plan.fold_row.tolist() == [0]
    assert by_format[DType.F16].fold_row.tolist() == []


def test_empty_needs_no_launch(launch) -> None:
    record = np.frombuffer(launch.scan_record(torch.empty(0, 3, dtype=torch.bfloat16)), new_record().dtype)
    assert (int(record["n"][0]), int(record["first_bad"][0]), int(record["dtype"][0])) == (0, -1, DType.BF16)


def test_refusals_say_why(launch) -> None:
    with pytest.raises(UnscannableTensor, match="not a floating or complex tensor"):
        launch.scan_record(torch.arange(3))
    raw = torch.zeros(41, dtype=torch.uint8)
    odd = torch.frombuffer(raw.numpy(), dtype=torch.float32, offset=1, count=10)
    with pytest.raises(UnscannableTensor, match=r"no multiple of its element size, 4: scan its clone\(\)"):
        launch.scan_record(odd)
    headers, records = np.concatenate([new_record()] * 2), torch.zeros(2, 16, dtype=torch.int64)
    with pytest.raises(UnscannableTensor, match=r"tensors\[1\]: must be contiguous, without lazy bits and on cpu"):
        launch.scan_many([torch.ones(2), torch.ones(2, 3).t()], headers, records)


def test_constants_mirror_the_record(triton) -> None:
    from nanscan.triton_kernels import classify

    for dtype in DType:
        if dtype != DType.UNKNOWN and not dtype.is_complex:
            kind = getattr(torch, dtype.torch_name)
            assert getattr(classify, dtype.name).value == dtype
            n_bytes, min_normal, inf = classify.LAYOUTS[int(dtype)]
            word = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[n_bytes]
            assert n_bytes == kind.itemsize
            least = torch.tensor(torch.finfo(kind).smallest_normal, dtype=torch.float64).to(kind)
            assert int(least.view(word)) == min_normal, dtype
            infinite = torch.tensor(float("inf")).to(kind)
            assert inf == (int(infinite.view(word)) if torch.isinf(infinite.double()) else 0), dtype
