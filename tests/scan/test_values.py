"""Every dtype, every implementation, lengths around the seams: lanes, blocks of 512, chunks of 2048 and 4096."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nanscan.record import RECORD_DTYPE

SMALL = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16", "bfloat16"]
LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 79, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 4160, 12345]


@pytest.mark.parametrize(
    ("fraction", "ends"),
    [(0.0, False), (0.001, True), (0.001, False), (0.4, True), (0.4, False)],
    ids=["clean", "rare", "rare-no-ends", "dense", "dense-no-ends"],
)
def test_lengths(agree, make, dtype, fraction, ends):
    for n in LENGTHS:
        agree(make(dtype, n, seed=n, fraction=fraction, ends=ends))


def test_any_pattern_of_bits(agree, dtype):
    for n in (1, 64, 5000):
        n_bytes = n * torch.empty(0, dtype=dtype).element_size()
        bits = torch.randint(256, (n_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
        agree(bits.view(dtype))


@pytest.mark.parametrize(
    "dtype",
    [getattr(torch, name) for name in SMALL],
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_small_formats_whole(agree, dtype):
    # GIVEN every value the format has, one per tensor of one and all together
    width = torch.empty(0, dtype=dtype).element_size()
    bits = torch.arange(1 << 8 * width, dtype=torch.int32).to(torch.uint8 if width == 1 else torch.uint16)
    everything = bits.view(dtype)
    agree(everything)
    agree(everything.repeat(3))
    # THEN each alone is classified right as well
    for value in everything[:: 1 if width == 1 else 251]:
        agree(value)


def test_scalar_and_size_one(agree, make, dtype):
    agree(make(dtype, 1).reshape(()))
    agree(make(dtype, 1).reshape(1, 1, 1))


def test_misaligned_memory(agree, make, dtype):
    # GIVEN a storage that starts one byte off
    values = make(dtype, 700, fraction=0.01)
    parts = torch.view_as_real(values).reshape(-1) if dtype.is_complex else values
    raw = torch.cat([torch.zeros(1, dtype=torch.uint8), parts.view(torch.uint8)])
    try:
        shifted = torch.frombuffer(raw.numpy(), dtype=dtype, offset=1)
    except (RuntimeError, ValueError) as err:
        pytest.skip(f"torch makes no misaligned {dtype}: {err}")
    agree(shifted)


def test_constant_tensor_has_no_spread(scan, dtype):
    for value in (0.1, -3.0, 0.0):
        record = scan(torch.full((5000,), value, dtype=torch.float64).to(dtype))
        spread = abs(value) / 2 if dtype.is_complex else 0.0  # the imaginary parts are zero
        assert float(record["m2"][0]) == pytest.approx(10000 * spread**2, rel=1e-2), value


def test_grad_and_parameter_are_read(agree):
    agree(torch.nn.Parameter(torch.randn(100)))
    agree((torch.nn.Parameter(torch.randn(100)) * 2).exp())


def test_only_statistics_are_written(core):
    record = np.frombuffer(core.scan(torch.ones(3)), RECORD_DTYPE)[0]
    assert (record["seq"], record["call"], record["step"], record["site"], record["shape"]) == (0, 0, 0, 0, 0)
    assert (record["output_index"], record["device"], record["phase"], record["flags"]) == (0, -1, 0, 0)
