"""The fold of many partial results, against record.merge one after another."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.8.0")

from nanscan.backends.eager import scan_record
from nanscan.record import DType, merge, n_moment, new_record
from nanscan.triton_kernels import launch
from nanscan_ptx.memory import GlobalMemory
from nanscan_ptx.parse import PtxError
from nanscan_triton_tests.in_ptx import BARRIER, TritonPtx, without

WORDS = ("n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal", "parts", "first_bad", "min", "max", "mean", "m2")


def partials_of(records: list[np.ndarray]) -> np.ndarray:
    """[11, chunks] int64, as the scan of the chunks leaves them."""
    words = np.zeros((len(WORDS), len(records)), np.int64)
    before = 0
    for i, record in enumerate(records):
        for w, name in enumerate(WORDS):
            if name == "parts":
                words[w, i] = n_moment(record[0])
            elif name == "first_bad":
                words[w, i] = before + int(record[name][0]) if int(record[name][0]) >= 0 else 2**63 - 1
            else:
                words[w, i] = np.asarray(record[name]).view(np.int64)[0]
        before += int(record["n"][0])
    return words


def fold(kernels: TritonPtx, records: list[np.ndarray]) -> np.ndarray:
    memory, out = GlobalMemory(), np.zeros(16, np.int64)
    header = new_record()
    header["dtype"] = DType.F32
    n, n_chunks = sum(int(record["n"][0]) for record in records), len(records)
    heads = launch.head_words(header)
    args = [memory.add(partials_of(records)), n, n_chunks, memory.add(out), *heads]
    kernels.run("fold_one", None, 1, args, memory)
    return out.view(np.uint8).view(header.dtype)


@pytest.fixture(scope="module")
def records() -> list[np.ndarray]:
    """Records of 1000 chunks of different lengths and means, one in ten without a finite value, one in seven empty."""
    generator, found = torch.Generator().manual_seed(0), []
    for i in range(1000):
        tensor = torch.randn(0 if i % 7 == 3 else 5 + i % 3, generator=generator) + i
        special = torch.rand(len(tensor), generator=generator)
        for k, value in enumerate((math.nan, math.inf, -math.inf, 0.0, 1e-40)):
            tensor[(special > k / 16) & (special < (k + 1) / 16)] = value
        found.append(scan_record(torch.full_like(tensor, math.nan) if i % 10 == 9 else tensor))
    return found


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    for name in ("n", "n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal", "min", "max", "first_bad", "flags"):
        assert found[name] == wanted[name], name
    for name in ("mean", "m2"):
        assert float(found[name][0]) == pytest.approx(float(wanted[name][0]), rel=1e-13), name


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_as_merged_one_by_one(triton_ptx, records, target: str) -> None:
    for n_chunks in (1, 2, 31, 33, 129, 1000):
        assert_same(fold(triton_ptx(target), records[:n_chunks]), reduce(merge, records[:n_chunks]))


def test_no_chunk_has_a_value(triton_ptx) -> None:
    record = fold(triton_ptx("sm_90"), [scan_record(torch.full((3,), math.nan))] * 40)
    assert (float(record["mean"][0]), float(record["m2"][0])) == (0.0, 0.0)
    assert (float(record["min"][0]), float(record["max"][0])) == (math.inf, -math.inf)
    assert int(record["n_nan"][0]) == 120


@pytest.mark.slow
def test_each_barrier_is_missed(triton_ptx, records) -> None:
    wanted = reduce(merge, records)
    total = len(BARRIER.findall(triton_ptx("sm_90").text("fold_one")))
    assert total > 10
    for position in range(total):
        try:
            assert_same(fold(TritonPtx("sm_90", without(position, "fold_one")), records), wanted)
        except (PtxError, AssertionError):
            continue
        pytest.fail(f"barrier {position} of {total} is not missed")
