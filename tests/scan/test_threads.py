"""Large tensors go to several threads: the same bits come out however many there are, and whoever else is scanning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


@pytest.fixture
def with_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [262_144, 1_000_003, 20_000_000], ids=str)
@pytest.mark.parametrize("level", ["portable", "avx2"])
def test_bits_do_not_depend_on_the_number_of_threads(core, make, with_threads, n, level):
    if level == "avx2" and core.simd_level() != "avx2":
        pytest.skip("no AVX2 here")
    before = core.simd_level()
    core.set_simd_level(level)
    try:
        tensor = make(torch.float32, n, mean=3.0)
        tensor[n // 3 :: 50_021] = float("nan")
        seen = set()
        for threads in (1, 2, 3, 8):
            with_threads(threads)
            seen.add(core.scan(tensor))
            seen.add(core.scan(tensor.reshape(1, -1)[:, ::1]))
    finally:
        core.set_simd_level(before)
    assert len(seen) == 1


def test_strided_bits_do_not_depend_on_threads(core, make, with_threads):
    tensor = make(torch.float32, 1_200_000).reshape(1200, 1000)[:, 1::2].t()
    seen = set()
    for threads in (1, 2, 5):
        with_threads(threads)
        seen.add(core.scan(tensor))
    assert len(seen) == 1


def test_many_threads_scan_at_once(core, make):
    tensors = [make(torch.float32, n, seed=n, fraction=0.01) for n in (1, 70, 5000, 300_000)]
    alone = [core.scan(tensor) for tensor in tensors]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(core.scan, tensors * 8)) == alone * 8


def test_repeated_scans_are_identical(core, make):
    tensor = make(torch.bfloat16, 500_000, fraction=0.001)
    assert len({core.scan(tensor) for _ in range(5)}) == 1
