"""Triton's compiled PTX against the long double oracle: what would run on a GPU, run here.

Every format on sm_90; on the others one of each kind of code. Blocks are what a program reads at once: 8 KiB, 4 KiB for
the one-byte formats; a chunk of 32 KiB is one program.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nanscan.record import Flag, new_record

NAMES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "complex64", "complex128",
]  # fmt: skip
ON = [
    *(("sm_90", name) for name in NAMES),
    *(("sm_80", name) for name in ("float32", "bfloat16", "float8_e4m3fn")),
    *(("sm_100", name) for name in ("float32", "bfloat16", "float8_e4m3fn", "complex64")),
]
on = pytest.mark.parametrize(("target", "name"), [pytest.param(*one, id="-".join(one)) for one in ON])


def block_of(dtype: torch.dtype) -> int:
    """Elements in one block."""
    return (4096 if dtype.itemsize == 1 else 8192) // dtype.itemsize


@on
def test_values_and_alignments(triton_ptx, make, agree, target: str, name: str) -> None:
    kernels, dtype = triton_ptx(target), getattr(torch, name)
    block, step = block_of(dtype), dtype.itemsize
    starts = [0, 8, 4080, 0] if step == 16 else [0, step, 16 - step, 4096 - step]
    lengths = [0, 1, 2, 31, block - 1, block, block + 1, 3 * block, 3 * block + 5, 4 * block + 3]
    if step == 16:
        starts = [0, 16, 4080]
    for i, n in enumerate(lengths):
        tensor = make(dtype, n, seed=n, fraction=0.4, ends=i % 2 == 0)
        agree(tensor, kernels.scan(tensor, off=starts[i % len(starts)]))
    for i, n in enumerate((block - 3, 2 * block, 3 * block + 7)):  # nothing special: the optimistic pass stands
        tensor = make(dtype, n, seed=n, mean=3.0)
        agree(tensor, kernels.scan(tensor, off=starts[i % len(starts)]))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("sm_90", "float32"),
        ("sm_90", "float8_e4m3fn"),
        ("sm_90", "complex128"),
        ("sm_80", "bfloat16"),
        ("sm_100", "float32"),
    ],
)
def test_several_programs_and_the_fold(triton_ptx, make, agree, target: str, name: str) -> None:
    kernels, dtype = triton_ptx(target), getattr(torch, name)
    n = 2 * (1 << 15) // dtype.itemsize + 3  # three chunks
    for fraction in (0.0, 0.4):
        tensor = make(dtype, n, fraction=fraction)
        agree(tensor, kernels.scan(tensor, off=dtype.itemsize if dtype.itemsize < 16 else 0))


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("float16", "bfloat16") or "float8" in name])
def test_every_value_of_a_small_format(triton_ptx, agree, name: str) -> None:
    dtype = getattr(torch, name)
    bits = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32)
    everything = bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    agree(everything, triton_ptx("sm_90").scan(everything))
    # The finite ones alone fill whole blocks: they go through the optimistic pass
    finite = everything[torch.isfinite(everything.float())]
    finite = finite.repeat(-(-3 * block_of(dtype) // len(finite)))
    agree(finite, triton_ptx("sm_90").scan(finite))


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        pytest.param("float32", 1e4, 1.0, id="f32-1e4-1"),  # plain sums of squares say std 1.39
        pytest.param("float32", 1000.0, 0.1, id="f32-1000-0.1"),  # ... and a negative variance
        pytest.param("float32", -3e7, 50.0, id="f32-far"),
        pytest.param("float16", 1000.0, 2.0, id="f16"),
        pytest.param("bfloat16", 1000.0, 10.0, id="bf16"),
        pytest.param("float64", 1e6, 1e-3, id="f64"),
        pytest.param("float32", 0.0, 1e-25, id="f32-squares-underflow"),
        pytest.param("float32", 0.0, 1e30, id="f32-squares-overflow"),
        pytest.param("complex64", 1e4, 1.0, id="c64"),
    ],
)
def test_shifted_data(triton_ptx, make, agree, name: str, mean: float, std: float) -> None:
    for n in (100, 9000):
        tensor = make(getattr(torch, name), n, seed=n, mean=mean, std=std)
        agree(tensor, triton_ptx("sm_90").scan(tensor), 1e-9 if name == "float64" else None)


def test_a_shift_far_from_the_rest(triton_ptx, make, agree) -> None:
    # GIVEN outliers, or nothing finite, just where the shift is drawn from
    for start in (1e6, -1e30, math.nan, math.inf):
        tensor = make(torch.float32, 9000, mean=10.0)
        tensor[:40] = start
        agree(tensor, triton_ptx("sm_90").scan(tensor))


def test_constant_tensors_have_no_spread(triton_ptx) -> None:
    for name, value in (("float32", 0.1), ("bfloat16", -3.0), ("float64", 1e300), ("float16", 0.0)):
        record = triton_ptx("sm_90").scan(torch.full((20_000,), value, dtype=torch.float64).to(getattr(torch, name)))
        assert float(record["m2"][0]) == 0.0, name


def test_ends_of_float64(triton_ptx, agree) -> None:
    top = torch.finfo(torch.float64).max
    for n in (50, 1200):  # one ragged block; whole blocks, too
        tensor = torch.tensor([top, top, -top, 0.0], dtype=torch.float64).repeat(n)
        record = triton_ptx("sm_90").scan(tensor)
        assert float(record["mean"][0]) == pytest.approx(top / 4, rel=1e-12)
        assert float(record["m2"][0]) == math.inf
        agree(tensor, record)
    # Chunks at opposite ends: the difference of their means overflows in the fold
    tensor = torch.full((8192,), top, dtype=torch.float64)
    tensor[4096:] = -top
    record = triton_ptx("sm_90").scan(tensor)
    assert (float(record["mean"][0]), float(record["m2"][0])) == (0.0, math.inf)


def test_who_and_where_stay_as_given(triton_ptx) -> None:
    header = new_record()
    header["seq"], header["call"], header["step"], header["site"] = 2**63 + 5, 2**40, 17, 2**32 - 2
    header["flags"], header["shape"], header["output_index"], header["device"] = Flag.TOP | Flag.BAD, 9, 3, 5
    header["phase"] = 2
    for tensor, bad in ((torch.ones(3), False), (torch.tensor([1.0, math.nan]), True), (torch.ones(20_000), False)):
        record = triton_ptx("sm_90").scan(tensor, header=header.copy())
        for field in ("seq", "call", "step", "site", "shape", "output_index", "device", "phase"):
            assert record[field] == header[field], field
        assert int(record["flags"][0]) == Flag.TOP | (Flag.BAD if bad else 0)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_many_tensors(triton_ptx, make, agree, target: str) -> None:
    # GIVEN tensors of one or two formats, empty and of several chunks among them, at all alignments
    lengths = (1, 0, 255, 4096, 4097, 33_000, 8192)
    tensors = [make(torch.bfloat16, n, seed=n, fraction=0.4 * (n % 2)) for n in lengths]
    if target == "sm_90":
        tensors[3:3] = [make(torch.float32, n, seed=n, fraction=0.1) for n in (3, 5000, 17_000)]
    offs = [tensor.element_size() * (i % 3) for i, tensor in enumerate(tensors)]
    records = triton_ptx(target).scan_many(tensors, offs)
    # THEN each has its record in its slot
    assert records["site"].tolist() == list(range(7, 7 + len(tensors)))
    for tensor, record in zip(tensors, records, strict=True):
        agree(tensor, record)


def test_the_same_bits_every_time(triton_ptx, make) -> None:
    # GIVEN the same values at another address of the same alignment
    tensor = make(torch.float32, 30_000, fraction=0.01)
    first, second = triton_ptx("sm_90").scan(tensor, off=4), triton_ptx("sm_90").scan(tensor, off=4 + 64)
    assert np.array_equal(first, second)
