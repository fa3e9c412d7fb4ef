"""From a chunk of memory to sums: an optimistic pass, and an exact one where that does not suit.

The optimistic pass masks nothing: sums about a shift, extrema, zeros, subnormals. NaN and Inf cannot leave a sum
finite, so finite sums prove that there were none. Otherwise the whole chunk is read again by the exact pass, which
masks and counts everything and adds in float64. The ragged ends of a tensor go through the exact pass in any case.

Memory is cut into blocks of BLOCK_BYTES, counted from the tensor's address rounded down to 16: so every whole block is
read by 16-byte loads, however the tensor is aligned, and only the first and the last block may be ragged.

Precision: a thread adds 16 bytes' worth of values in float32 (float64 for F64) and everything above that in float64.
The optimistic sums are given up if their shift turns out to have cost more than 6 bits, or squares underflowed; the
exact pass then starts from the mean. So std is right to about 4e-6 of itself, whatever the data (tests/triton).
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanscan.triton_kernels.classify import (
    F64,
    NAN,
    NEG_INF,
    POS_INF,
    SUBNORMAL,
    ZERO,
    classify,
    magnitude,
    pointer,
    value,
    vectors,
    widen,
)

NO_INDEX = tl.constexpr(2**63 - 1)
NO_LANE = tl.constexpr(2**31 - 1)
DOWN = tl.constexpr(2.0**-540)  # scale at which squares of float64's largest values can be added


@triton.jit
def is_finite(x):
    return x - x == 0.0  # Inf - Inf and NaN - NaN are NaN


@triton.jit
def sample_shift(
    base, low, high, FORMAT: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr
):
    """The first finite value among 32 at positions low ... of [low, high), as float64; 0 if there is none."""
    lane = tl.arange(0, 32)
    there = low + lane < high
    bits = widen(tl.load(pointer(base + low * BYTES, BYTES) + lane, mask=there, other=0))
    good = there & (classify(bits, FORMAT, MIN_NORMAL, INF) < NEG_INF)
    first = tl.min(tl.where(good, lane, 32), 0)
    return tl.sum(tl.where(lane == first, tl.where(good, value(bits, FORMAT), 0.0), 0.0), 0).to(tl.float64)


@triton.jit
def optimistic(
    base, first_block, end_block, shift,
    FORMAT: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr,
    THREADS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Whole blocks [first_block, end_block): sum and sum_sq about shift, min, max, zeros, subnormals, all scalars."""
    VEC: tl.constexpr = 16 // BYTES
    ROWS: tl.constexpr = THREADS * UNROLL
    # [ROWS, VEC]: a row is one 16-byte load, and reducing over axis 1 stays within a thread.
    tile = tl.arange(0, ROWS)[:, None] * VEC + tl.arange(0, VEC)[None, :]
    wide: tl.constexpr = tl.float64 if FORMAT == F64 else tl.float32
    near = shift.to(wide)
    sums = tl.zeros([ROWS], tl.float64)
    squares = tl.zeros([ROWS], tl.float64)
    low = tl.full([ROWS], float("inf"), wide)
    high = tl.full([ROWS], float("-inf"), wide)
    zeros = tl.zeros([ROWS], tl.int32)
    small = tl.zeros([ROWS], tl.int32)  # subnormal, for pairs; zero or subnormal otherwise
    for block in range(first_block, end_block):
        start = vectors(base + block * (ROWS * 16), BYTES)
        bits = widen(tl.load(start + tile, eviction_policy="evict_first"))
        x = value(bits, FORMAT)
        d = x - near
        sums += tl.sum(d, 1).to(tl.float64)
        squares += tl.sum(d * d, 1).to(tl.float64)
        low = tl.minimum(low, tl.min(x, 1))
        high = tl.maximum(high, tl.max(x, 1))
        mag = magnitude(bits, FORMAT)
        if PAIRS:
            pair = tl.reshape(mag, [ROWS, VEC // 2, 2])
            subnormal = ((pair > 0) & (pair < MIN_NORMAL)).to(tl.int32)
            zeros += tl.sum((tl.max(pair, 2) == 0).to(tl.int32), 1)
            small += tl.sum(tl.max(subnormal, 2), 1)
        else:
            zeros += tl.sum((mag == 0).to(tl.int32), 1)
            small += tl.sum((mag < MIN_NORMAL).to(tl.int32), 1)
    n_zero = tl.sum(zeros.to(tl.int64), 0)
    n_subnormal = tl.sum(small.to(tl.int64), 0)
    if not PAIRS:
        n_subnormal -= n_zero
    return (
        tl.sum(sums, 0), tl.sum(squares, 0), tl.min(low, 0).to(tl.float64), tl.max(high, 0).to(tl.float64),
        n_zero, n_subnormal,
    )  # fmt: skip


@triton.jit
def exact(
    base, first_block, n_steps, stride, low, high, shift,
    FORMAT: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr,
    THREADS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Blocks first_block + k * stride, k < n_steps, as far as they lie in positions [low, high): every statistic."""
    VEC: tl.constexpr = 8 if BYTES == 1 else 16 // BYTES  # 16 float64 values and their masks would take 128 registers
    STEPS: tl.constexpr = UNROLL * (16 // BYTES) // VEC  # per block
    PARTS: tl.constexpr = 2 if PAIRS else 1
    STEP: tl.constexpr = THREADS * VEC
    tile = tl.arange(0, THREADS)[:, None] * VEC + tl.arange(0, VEC)[None, :]
    element = tl.arange(0, THREADS)[:, None] * (VEC // PARTS) + tl.arange(0, VEC // PARTS)[None, :]
    wide: tl.constexpr = tl.float64 if FORMAT == F64 else tl.float32
    sums = tl.zeros([THREADS], tl.float64)
    squares = tl.zeros([THREADS], tl.float64)
    sums_down = tl.zeros([THREADS], tl.float64)
    squares_down = tl.zeros([THREADS], tl.float64)
    least = tl.full([THREADS], float("inf"), wide)
    most = tl.full([THREADS], float("-inf"), wide)
    n_nan = tl.zeros([THREADS], tl.int32)
    n_posinf = tl.zeros([THREADS], tl.int32)
    n_neginf = tl.zeros([THREADS], tl.int32)
    n_zero = tl.zeros([THREADS], tl.int32)
    n_subnormal = tl.zeros([THREADS], tl.int32)
    n_parts = tl.zeros([THREADS], tl.int32)
    first_bad = tl.full([THREADS], NO_INDEX, tl.int64)
    for step in range(0, n_steps * STEPS):
        at = ((first_block + (step // STEPS) * stride) * STEPS + step % STEPS) * STEP  # position of the step
        start = vectors(base + at * BYTES, BYTES)
        if (at >= low) & (at + STEP <= high):
            bits = widen(tl.load(start + tile))
        else:
            bits = widen(tl.load(start + tile, mask=(tile >= low - at) & (tile < high - at), other=0))
        found = tl.where((tile >= low - at) & (tile < high - at), classify(bits, FORMAT, MIN_NORMAL, INF), -1)
        if PAIRS:
            of_element = tl.max(tl.reshape(found, [THREADS, VEC // 2, 2]), 2)
            of_parts = tl.broadcast_to(of_element[:, :, None], [THREADS, VEC // 2, 2])
            found = tl.reshape(of_parts, [THREADS, VEC])
        else:
            of_element = found
        n_nan += tl.sum((of_element == NAN).to(tl.int32), 1)
        n_posinf += tl.sum((of_element == POS_INF).to(tl.int32), 1)
        n_neginf += tl.sum((of_element == NEG_INF).to(tl.int32), 1)
        n_zero += tl.sum((of_element == ZERO).to(tl.int32), 1)
        n_subnormal += tl.sum((of_element == SUBNORMAL).to(tl.int32), 1)
        bad_at = tl.min(tl.where(of_element >= NEG_INF, element, NO_LANE), 1)
        index = bad_at.to(tl.int64) + (at - low) // PARTS
        first_bad = tl.minimum(first_bad, tl.where(bad_at == NO_LANE, NO_INDEX, index))
        good = (found >= ZERO) & (found < NEG_INF)
        n_parts += tl.sum(good.to(tl.int32), 1)
        x = value(bits, FORMAT)
        least = tl.minimum(least, tl.min(tl.where(good, x, float("inf")), 1))
        most = tl.maximum(most, tl.max(tl.where(good, x, float("-inf")), 1))
        d = tl.where(good, x.to(tl.float64) - shift, 0.0)
        sums += tl.sum(d, 1)
        squares += tl.sum(d * d, 1)
        if FORMAT == F64:
            d_down = tl.where(good, x * DOWN - shift * DOWN, 0.0)
            sums_down += tl.sum(d_down, 1)
            squares_down += tl.sum(d_down * d_down, 1)
    return (
        tl.sum(sums, 0), tl.sum(squares, 0), tl.sum(sums_down, 0), tl.sum(squares_down, 0),
        tl.min(least, 0).to(tl.float64), tl.max(most, 0).to(tl.float64),
        tl.sum(n_nan.to(tl.int64), 0), tl.sum(n_posinf.to(tl.int64), 0), tl.sum(n_neginf.to(tl.int64), 0),
        tl.sum(n_zero.to(tl.int64), 0), tl.sum(n_subnormal.to(tl.int64), 0), tl.sum(n_parts.to(tl.int64), 0),
        tl.min(first_bad, 0),
    )  # fmt: skip
