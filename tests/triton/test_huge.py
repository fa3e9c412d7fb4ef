"""More than 2^31 elements: memory that is never touched but at its end, and only the last programs run."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.8.0")

from nanscan.record import DType
from nanscan.triton_kernels import launch
from nanscan.triton_kernels.moments import N_WORDS
from nanscan_ptx.memory import GlobalMemory

BLOCK = 2048  # float32 elements


def test_index_past_2_to_the_31(triton_ptx) -> None:
    n = 2**31 + 1000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    data = np.frombuffer(mmap.mmap(-1, 4 * n, flags=flags), np.float32)
    data[2**31 + 3], data[n - 2], data[n - 1] = -5.0, np.inf, np.nan
    # GIVEN one block per program, so that the last program is short work
    n_programs = -(-n // BLOCK)
    memory = GlobalMemory()
    partials = np.zeros((N_WORDS, n_programs), np.int64)
    args = [memory.add(data), n, 1, memory.add(partials), memory.add(np.zeros(16, np.int64)), 0, 0, 0, 0, 0]
    last = n_programs - 1
    triton_ptx("sm_90").run("scan_one", DType.F32, n_programs, args, memory, blocks=[(last, 0, 0), (last - 3, 0, 0)])
    # THEN its partial result has the right index, and its neighbour's is what zeros give
    n_nan, n_posinf, n_neginf, n_zero, _, n_parts, first_bad, low = partials[:8, last].tolist()
    assert (n_nan, n_posinf, n_neginf, n_zero, n_parts, first_bad) == (1, 1, 0, 1000 - 3, 1000 - 2, n - 2)
    assert np.int64(low).view(np.float64) == -5.0
    assert partials[3, last - 3] == BLOCK
    assert partials[:, last - 1].tolist() == [0] * N_WORDS


def test_the_plan_of_a_huge_tensor() -> None:
    for dtype, n in ((DType.F32, 2**31 + 1000), (DType.F8_E5M2, 2**40), (DType.C128, 2**33)):
        form = launch.format_of(dtype)
        n_chunks, blocks_per_chunk = launch.n_chunks_of(n, form)
        n_bytes = n * form.BYTES * (2 if form.PAIRS else 1)
        assert n_chunks <= launch.MAX_CHUNKS
        assert n_chunks * blocks_per_chunk * form.block_bytes >= n_bytes + 16 - form.BYTES
        assert (n_chunks - 1) * blocks_per_chunk * form.block_bytes < n_bytes + 16


def test_counters_of_a_thread_have_room() -> None:
    # A thread counts in 32 bits: of 2^40 bytes in 1024 chunks, each of 128 threads sees 2^23, and a block's worth
    form = launch.format_of(DType.F8_E5M2)
    _, blocks_per_chunk = launch.n_chunks_of(2**40, form)
    assert blocks_per_chunk * form.block_bytes // form.THREADS <= 2**23 + 64
