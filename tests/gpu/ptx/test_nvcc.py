"""The CUDA kernels as nvcc's PTX against the long double oracle, and with each barrier deleted.

Every element type for compute_90, three kinds for the others. What a fence orders does not show here: tests of the
source under ThreadSanitizer see that.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from nanscan.record import DType, Flag, new_record
from nanscan_ptx.cuda_kernels import CudaPtx, Ring, Tensor, compile_ptx, load_host
from nanscan_ptx.memory import GlobalMemory
from nanscan_ptx.parse import PtxError

CSRC = Path(__file__).resolve().parents[3] / "csrc"
KINDS = ("float32", "bfloat16", "complex64")
KINDS_IN_C = ("kF32, F32, 1", "kBF16, BF16, 1", "kC64, F32, 2")
NAMES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "complex64", "complex128",
]  # fmt: skip
ON = [*(("compute_90", name) for name in NAMES), *((f"compute_{cc}", name) for cc in (80, 100) for name in KINDS)]
REPLAY = 1024  # kFlagReplay

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def text(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """arch -> PTX."""
    to = tmp_path_factory.mktemp("ptx")
    return cache(lambda arch: compile_ptx(nvcc, CSRC, arch, to, () if arch == "compute_90" else KINDS_IN_C))


@pytest.fixture(scope="session")
def host(nvcc: str, tmp_path_factory: pytest.TempPathFactory):
    return load_host(nvcc, CSRC, tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def kernels(text, host) -> Callable[[str], CudaPtx]:
    return cache(lambda arch: CudaPtx(text(arch), host))


@pytest.mark.parametrize(("arch", "name"), [pytest.param(*one, id="-".join(one)) for one in ON])
def test_values_and_alignments(kernels, make, agree, arch: str, name: str) -> None:
    cuda, dtype = kernels(arch), getattr(torch, name)
    step = dtype.itemsize
    batch = 256 * 4 * 16 // step  # elements that a block takes at once: four vectors per thread
    lengths = [0, 1, 33, batch - 1, batch + 1, 4 * batch + 16 // step]
    for i, n in enumerate(lengths):
        off = (0, step, 16 - step, 4096 - step)[i % 4] if step < 16 else (0, 16)[i % 2]
        tensor = make(dtype, n, seed=n, fraction=0.4, ends=i % 2 == 0)
        agree(tensor, cuda.scan(tensor, off))
    for n in (batch - 3, 4 * batch + 5):
        tensor = make(dtype, n, seed=n, mean=3.0)
        agree(tensor, cuda.scan(tensor, step if step < 16 else 0))


@pytest.mark.parametrize("arch", ["compute_80", "compute_90", "compute_100"])
def test_shifted_data(kernels, make, agree, arch: str) -> None:
    for name, mean, std in (("float32", 1e4, 1.0), ("float32", 1000.0, 0.1), ("float32", 0.0, 1e-25)):
        tensor = make(getattr(torch, name), 9000, mean=mean, std=std)
        agree(tensor, kernels(arch).scan(tensor, 4))


@pytest.mark.parametrize("arch", ["compute_80", "compute_90", "compute_100"])
def test_layouts_and_lazy_bits(kernels, make, agree, arch: str) -> None:
    square = make(torch.float32, 64 * 66, fraction=0.01).reshape(64, 66)
    pairs = make(torch.complex64, 700, fraction=0.2)
    for tensor in (
        square.t(),  # dense, in another order
        square[::2, 1:],  # gathered
        square[3:4].expand(5, 66),
        square.reshape(4, 16, 66).permute(2, 0, 1),
        torch._neg_view(square),
        pairs.conj(),
        pairs[1:],
        pairs.imag,
    ):
        agree(tensor, kernels(arch).scan(tensor))


@pytest.mark.parametrize("arch", ["compute_80", "compute_90", "compute_100"])
def test_many_tensors(kernels, make, agree, arch: str) -> None:
    tensors = [make(torch.float32, n, seed=n, fraction=0.4 * (n % 2)) for n in (1, 0, 255, 4096, 4097, 20_001)]
    tensors += [make(torch.bfloat16, n, seed=n, fraction=0.1) for n in (3, 33_000)]
    tensors += [tensors[3].reshape(64, 64).t(), make(torch.complex64, 300, fraction=0.4)]
    headers = np.concatenate([new_record() for _ in tensors])
    headers["site"] = np.arange(len(tensors)) + 7
    offs = [0 if tensor.is_complex() else tensor.element_size() * (i % 3) for i, tensor in enumerate(tensors)]
    records = kernels(arch).scan_many(tensors, offs, headers)
    assert sorted(records["site"].tolist()) == headers["site"].tolist()
    for record in records:
        agree(tensors[int(record["site"]) - 7], record)


def test_who_and_where_stay_as_given(kernels) -> None:
    header = new_record()
    header["call"], header["step"], header["site"], header["flags"] = 2**40, 17, 2**32 - 2, Flag.TOP | Flag.BAD
    header["shape"], header["output_index"], header["device"], header["phase"] = 9, 3, 5, 2
    for n_before in (None, 0, 4):
        replays = None if n_before is None else np.array([n_before], np.uint64)
        record = kernels("compute_90").scan(torch.ones(20_000), header=header.copy(), replays=replays)
        for field in ("call", "site", "shape", "output_index", "device", "phase"):
            assert record[field] == header[field], field
        # A launch in a graph: each replay is a step of its own
        assert int(record["step"][0]) == 17 + (n_before or 0)
        assert int(record["flags"][0]) == Flag.TOP | (REPLAY if replays is not None else 0)
        assert replays is None or int(replays[0]) == n_before + 1


def test_a_full_ring_drops_and_counts(kernels) -> None:
    ring = Ring()
    ring.cursor[0] = len(ring.slots)  # as many tickets as slots; the host has taken nothing
    with pytest.raises(AssertionError):
        kernels("compute_90").scan(torch.ones(3), ring=ring)
    assert ring.stamps.tolist() == [0] * len(ring.slots)
    assert ring.board.tolist()[:3] == [0, 1, 0]  # consumed, dropped outside graphs and in them
    ring.board[0] = 1  # it takes one: there is room again
    with pytest.raises(AssertionError):
        kernels("compute_90").scan(torch.ones(3), ring=ring)
    assert int(ring.stamps[0]) == len(ring.slots) + 1
    assert int(ring.slots["n"][0]) == 3


def test_index_past_2_to_the_31(kernels) -> None:
    n = 2**31 + 1000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    data = np.frombuffer(mmap.mmap(-1, n, flags=flags), np.uint8)
    data[n - 2], data[n - 1] = 0x7C, 0x7F  # float8_e5m2: an infinity, a NaN
    cuda, memory, ring = kernels("compute_90"), GlobalMemory(), Ring()
    partials = np.zeros((2048, cuda.host.size_of_partial() // 8), np.uint64)
    spec = Tensor(data=memory.add(data), numel=n, dtype=int(DType.F8_E5M2), n_dims=1)
    spec.sizes[0], spec.strides[0] = n, 1
    argument, n_blocks = cuda.argument(spec, new_record(), memory.add(np.zeros(1, np.uint32)), memory.add(partials))
    cuda.run(spec.dtype, n_blocks, argument, ring.argument(cuda.host, memory), memory, only=[n_blocks - 1])
    words = partials[n_blocks - 1].tolist()  # Moments: n, n_nan, n_posinf, ..., first_bad last
    assert (words[1], words[2], words[-1]) == (1, 1, n - 2)
    assert words[0] == words[4] + 2  # all else is zeros


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [("compute_80", DType.F32), ("compute_90", DType.F32), ("compute_90", DType.F64), ("compute_100", DType.BF16)],
)
def test_each_barrier_is_missed(text, host, kernels, make, agree, arch: str, dtype: DType) -> None:
    # GIVEN the PTX from the kernel's name to its end, and a tensor of several blocks
    ptx, name = text(arch), kernels(arch).name(dtype)
    start = ptx.index(f".entry {name}")
    end = (*(at for at in [ptx.find(".entry", start + 10)] if at > 0), len(ptx))[0]
    torch_dtype = getattr(torch, dtype.torch_name)
    tensor = make(torch_dtype, 4 * 16384 // torch_dtype.itemsize + 5, fraction=0.4)
    barriers = [m.span() for m in re.finditer(r"^\s*(?:bar|barrier)(?:\.cta)?\.sync[^;]*;", ptx, re.MULTILINE)]
    barriers = [(a, b) for a, b in barriers if start < a < end]
    assert len(barriers) >= 2
    agree(tensor, kernels(arch).scan(tensor, torch_dtype.itemsize))
    # THEN every deletion is noticed
    for number, (a, b) in enumerate(barriers):
        broken = CudaPtx(ptx[:a] + ptx[b:], host)
        try:
            agree(tensor, broken.scan(tensor, torch_dtype.itemsize))
        except (PtxError, AssertionError, pytest.fail.Exception):
            continue
        pytest.fail(f"barrier {number} of {len(barriers)} is not missed")
