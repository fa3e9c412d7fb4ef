"""Mean, std and norm where naive sums go wrong, and counts where float counters do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nanscan.record import RECORD_DTYPE, stats_from_record


@pytest.mark.parametrize(
    ("dtype", "mean", "std", "tolerance"),
    [
        pytest.param(torch.float32, 1e4, 1.0, 2e-6, id="f32-1e4-1"),  # plain sums of squares say std 1.39
        pytest.param(torch.float32, 1000.0, 0.1, 2e-6, id="f32-1000-0.1"),  # ... and a negative variance
        pytest.param(torch.float32, -3e7, 50.0, 2e-6, id="f32-far"),
        pytest.param(torch.float16, 1000.0, 2.0, 2e-6, id="f16"),
        pytest.param(torch.bfloat16, 1000.0, 10.0, 2e-6, id="bf16"),
        pytest.param(torch.float64, 1e6, 1e-3, 1e-9, id="f64"),
        pytest.param(torch.float32, 0.0, 1e-25, 2e-6, id="f32-squares-underflow"),
        pytest.param(torch.float32, 1e-20, 1e-24, 2e-6, id="f32-tiny-shifted"),
        pytest.param(torch.float32, 0.0, 1e30, 2e-6, id="f32-squares-overflow"),
        pytest.param(torch.bfloat16, 0.0, 1e30, 2e-6, id="bf16-squares-overflow"),
        pytest.param(torch.complex64, 1e4, 1.0, 2e-6, id="c64"),
    ],
)
def test_shifted_data(agree, make, dtype, mean, std, tolerance):
    for n in (100, 5000, 300_000):
        agree(make(dtype, n, seed=n, mean=mean, std=std), tolerance)


@pytest.mark.parametrize("where", [slice(0, 1), slice(0, None, 512), slice(0, 64), slice(4000, 4096)], ids=str)
def test_outliers_in_the_sample_for_the_shift(agree, make, where):
    # GIVEN a few values a million times the others, just where the shift is drawn from
    tensor = make(torch.float32, 20_000)
    tensor[where] = 1e6
    agree(tensor, 5e-5)


def test_outlier_channel(agree, make):
    tensor = make(torch.float32, 1 << 16).reshape(-1, 64)
    tensor[:, 0] += 1e5
    agree(tensor, 5e-5)


def test_ends_of_float64(scan):
    # GIVEN values whose sum, differences and squares overflow
    top = torch.finfo(torch.float64).max
    stats = stats_from_record(scan(torch.tensor([top, top, -top, 0.0], dtype=torch.float64).repeat(50)))
    # THEN nothing is NaN, and what float64 can hold is right
    assert stats.mean == pytest.approx(top / 4, rel=1e-12)
    assert (stats.std, stats.norm, stats.absmax, stats.nonfinite) == (math.inf, math.inf, top, 0)
    # A norm that fits is told even where its square would not
    assert stats_from_record(scan(torch.full((4,), 1e200, dtype=torch.float64))).norm == pytest.approx(2e200)


def test_opposite_ends_in_different_chunks(scan):
    top = torch.finfo(torch.float64).max
    values = torch.full((10_000,), top, dtype=torch.float64)
    stats = stats_from_record(scan(values))
    assert (stats.mean, stats.std) == (top, 0.0)
    values[5000:] = -top
    assert not math.isnan(stats_from_record(scan(values)).mean)


def test_counts_past_2_to_the_24(scan):
    # GIVEN more NaN than a float32 counter can tell apart
    n = (1 << 24) + 3
    tensor = torch.full((n + 6,), math.nan, dtype=torch.bfloat16)
    tensor[:5] = 0.0
    tensor[-1] = float("-inf")
    stats = stats_from_record(scan(tensor))
    assert (stats.numel, stats.zero, stats.nan, stats.neginf, stats.first_bad_index) == (n + 6, 5, n, 1, 5)


def test_only_bad_elements(scan, dtype):
    if dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        tensor = torch.full((5000,), math.nan).to(dtype)
    else:
        tensor = torch.tensor([math.nan, math.inf, -math.inf]).to(dtype).repeat(2000)
    stats = stats_from_record(scan(tensor))
    assert stats.finite == 0
    assert all(math.isnan(value) for value in (stats.min, stats.max, stats.mean, stats.std, stats.absmax))
    assert stats.norm == 0.0


@pytest.mark.parametrize("at", [0, 1, 63, 4095, 4096, 9999])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_one_bad_element_neither_hides_nor_spreads(agree, make, at, bad):
    tensor = make(torch.float32, 10_000)
    tensor[at] = bad
    record = agree(tensor)
    assert int(record["first_bad"][0]) == at


def test_mask_of_minus_infinity(agree, make):
    # Half the chunk -inf, as in a causal mask
    scores = make(torch.float32, 128 * 128).reshape(128, 128)
    agree(scores.masked_fill(torch.ones(128, 128, dtype=torch.bool).triu(1), -math.inf))


def test_relu_zeros_and_flushing(core, agree, make):
    # Blocks with and without zeros in turn; then subnormals while torch flushes them in arithmetic
    tensor = make(torch.float32, 20_000).relu()
    tensor[5000:9000] += 1.0
    agree(tensor)
    tensor[::7] = 1e-40
    was_there = int(agree(tensor)["n_subnormal"][0])
    if torch.set_flush_denormal(True):
        try:
            assert int(np.frombuffer(core.scan(tensor), RECORD_DTYPE)["n_subnormal"][0]) == was_there
        finally:
            torch.set_flush_denormal(False)


def test_complex_counts_by_the_worse_part(scan):
    nan, inf, tiny = math.nan, math.inf, 1e-40
    pairs = [(0, 0), (0, 1), (tiny, 0), (tiny, 1), (inf, nan), (-inf, inf), (-inf, 1), (nan, 0), (tiny, inf), (2, -3)]
    for n_repeats in (1, 100):
        z = torch.view_as_complex(torch.tensor(pairs).repeat(n_repeats, 1))
        stats = stats_from_record(scan(z))
        counts = (stats.zero, stats.subnormal, stats.nan, stats.posinf, stats.neginf)
        assert counts == tuple(n_repeats * k for k in (1, 2, 2, 2, 1))
        assert (stats.first_bad_index, stats.min, stats.max) == (4, -3.0, 2.0)
