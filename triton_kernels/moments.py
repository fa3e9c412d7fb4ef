"""From sums to a partial result, and from partial results to a record.

A partial result is 11 words in memory, structure of arrays: word w of partial p stands at partials[w * n_partials + p].
They are folded in index order by a tree of fixed shape, so a record depends on the tensor alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanscan.triton_kernels.accumulate import DOWN, NO_INDEX, exact, is_finite, optimistic, sample_shift
from nanscan.triton_kernels.classify import F64

# Words of a partial result. The floating ones are float64 bit patterns.
N_WORDS = 11  # n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, min, max, mean, m2


@triton.jit
def mean_and_m2(shift, sums, squares, sums_down, squares_down, n_parts, FORMAT: tl.constexpr):
    """As moments_of in accumulate.h: from sums about shift; from those scaled down where float64 overflowed."""
    count = tl.maximum(n_parts, 1).to(tl.float64)
    offset = sums / count
    mean = shift + offset
    m2 = squares - sums * offset
    if FORMAT == F64:
        offset_down = sums_down / count
        fits = is_finite(m2) & is_finite(mean)
        mean = tl.where(fits, mean, (shift * DOWN + offset_down) * (1.0 / DOWN))
        m2 = tl.where(fits, m2, (squares_down - sums_down * offset_down) * (1.0 / DOWN) * (1.0 / DOWN))
    none = n_parts == 0
    return tl.where(none, 0.0, mean), tl.where(none | (m2 < 0.0), 0.0, m2)  # rounding may leave less than nothing


@triton.jit
def scan_chunk(
    address, n, first_block, n_blocks,
    FORMAT: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr,
    THREADS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The partial result, 11 scalars, of blocks first_block ... of the n elements at address. BYTES: of one part."""
    PARTS: tl.constexpr = 2 if PAIRS else 1
    BLOCK: tl.constexpr = THREADS * UNROLL * (16 // BYTES)
    base = address & -16
    low = (address & 15) // BYTES  # positions count parts from base
    high = low + n * PARTS
    end_block = tl.minimum(first_block + n_blocks, (high + (BLOCK - 1)) // BLOCK)
    at = tl.maximum(first_block * BLOCK, low)
    shift = sample_shift(base, at, high, FORMAT, BYTES, MIN_NORMAL, INF)

    # Whole blocks. A chunk's first block is ragged only in front, its last one behind; a lone block may be both.
    ragged_front = ((first_block == 0) & (low > 0)).to(tl.int64)
    whole = tl.maximum(first_block + ragged_front, tl.minimum(end_block, high // BLOCK))
    n_whole = (whole - first_block - ragged_front) * BLOCK
    sums, squares, least, most, n_zero, n_subnormal = optimistic(
        base, first_block + ragged_front, whole, shift, FORMAT, PAIRS, BYTES, MIN_NORMAL, THREADS, UNROLL
    )
    count = tl.maximum(n_whole, 1).to(tl.float64)
    left = squares - sums * (sums / count)
    spread = most - least
    unfit = (is_finite(sums) & is_finite(squares)) == 0
    unfit = unfit | (left * 64.0 < squares)  # the shift was far from the mean
    if FORMAT != F64:
        unfit = unfit | ((spread > 0.0) & (spread < 1e-14))  # squares underflowed

    # What the optimistic pass did not take: all of it, or the ragged blocks at the two ends.
    shift = tl.where(unfit & is_finite(sums), shift + sums / count, shift)
    sums = tl.where(unfit, 0.0, sums)
    squares = tl.where(unfit, 0.0, squares)
    least = tl.where(unfit, float("inf"), least)
    most = tl.where(unfit, float("-inf"), most)
    n_zero = tl.where(unfit, 0, n_zero)
    n_subnormal = tl.where(unfit, 0, n_subnormal)
    n_parts = tl.where(unfit, 0, n_whole)
    n_nan = n * 0
    n_posinf = n * 0
    n_neginf = n * 0
    first_bad = n * 0 + NO_INDEX
    sums_down = sums * DOWN
    squares_down = squares * DOWN * DOWN
    first_step = tl.where(unfit | (ragged_front == 1), first_block, whole)
    stride = tl.where(unfit, 1, tl.maximum(whole - first_block, 1))
    n_steps = tl.where(unfit, end_block - first_block, ragged_front + end_block - whole)
    if n_steps > 0:
        (
            sums_e, squares_e, sums_down_e, squares_down_e, least_e, most_e,
            nan_e, posinf_e, neginf_e, zero_e, sub_e, parts_e, bad_e,
        ) = exact(
            base, first_step, n_steps, stride, low, high, shift,
            FORMAT, PAIRS, BYTES, MIN_NORMAL, INF, THREADS, UNROLL,
        )  # fmt: skip
        sums += sums_e
        squares += squares_e
        sums_down += sums_down_e
        squares_down += squares_down_e
        least = tl.minimum(least, least_e)
        most = tl.maximum(most, most_e)
        n_nan += nan_e
        n_posinf += posinf_e
        n_neginf += neginf_e
        n_zero += zero_e
        n_subnormal += sub_e
        n_parts += parts_e
        first_bad = tl.minimum(first_bad, bad_e)
    mean, m2 = mean_and_m2(shift, sums, squares, sums_down, squares_down, n_parts, FORMAT)
    return n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2


@triton.jit
def store_record(
    out, n, head0, head1, head2, head3, head15,
    n_nan, n_posinf, n_neginf, n_zero, n_subnormal, first_bad, least, most, mean, m2,
):  # fmt: skip
    """One record to out, [16] int64. head*: the words that hold who and where; of the flags BAD alone is set here."""
    bad = (n_nan + n_posinf + n_neginf > 0).to(tl.int64)
    tl.store(out + 0, head0)
    tl.store(out + 1, head1)
    tl.store(out + 2, head2)
    tl.store(out + 3, (head3 & ~(1 << 48)) | (bad << 48))  # site, dtype, flags
    tl.store(out + 4, n)
    tl.store(out + 5, n_nan)
    tl.store(out + 6, n_posinf)
    tl.store(out + 7, n_neginf)
    tl.store(out + 8, n_zero)
    tl.store(out + 9, n_subnormal)
    tl.store(out + 10, least.to(tl.int64, bitcast=True))
    tl.store(out + 11, most.to(tl.int64, bitcast=True))
    tl.store(out + 12, mean.to(tl.int64, bitcast=True))
    tl.store(out + 13, m2.to(tl.int64, bitcast=True))
    tl.store(out + 14, tl.where(first_bad == NO_INDEX, -1, first_bad))
    tl.store(out + 15, head15)  # shape, output index, device, phase


@triton.jit
def load_float(place, there, other):
    """[LANES] float64; other where nothing is there."""
    return tl.where(there, tl.load(place, mask=there, other=0).to(tl.float64, bitcast=True), other)


@triton.jit
def fold(partials, n_partials, first, n_chunks, out, n, head0, head1, head2, head3, head15, LANES: tl.constexpr):
    """Partial results [first, first + n_chunks), at most LANES of them, into the record at out. Chan's formula."""
    lane = tl.arange(0, LANES)
    there = lane < n_chunks
    place = partials + first + lane
    n_nan = tl.sum(tl.load(place + 0 * n_partials, mask=there, other=0), 0)
    n_posinf = tl.sum(tl.load(place + 1 * n_partials, mask=there, other=0), 0)
    n_neginf = tl.sum(tl.load(place + 2 * n_partials, mask=there, other=0), 0)
    n_zero = tl.sum(tl.load(place + 3 * n_partials, mask=there, other=0), 0)
    n_subnormal = tl.sum(tl.load(place + 4 * n_partials, mask=there, other=0), 0)
    parts = tl.load(place + 5 * n_partials, mask=there, other=0)
    first_bad = tl.min(tl.load(place + 6 * n_partials, mask=there, other=NO_INDEX), 0)
    least = tl.min(load_float(place + 7 * n_partials, there, float("inf")), 0)
    most = tl.max(load_float(place + 8 * n_partials, there, float("-inf")), 0)
    means = load_float(place + 9 * n_partials, there, 0.0)
    m2s = load_float(place + 10 * n_partials, there, 0.0)

    counts = parts.to(tl.float64)
    total = tl.maximum(tl.sum(parts, 0), 1).to(tl.float64)
    shares = counts / total
    some = parts > 0
    begin = tl.min(tl.where(some, lane, LANES), 0)
    reference = tl.sum(tl.where(lane == begin, means, 0.0), 0)  # differences first: equal means stay as they are
    deltas = tl.where(some, means - reference, 0.0)
    mean = reference + tl.sum(deltas * shares, 0)
    off = tl.where(some, means - mean, 0.0)
    m2 = tl.sum(m2s, 0) + tl.sum(off * off * counts, 0)
    opposite = is_finite(mean) == 0  # means near float64's ends, with opposite signs
    mean = tl.where(opposite, tl.sum(means * shares, 0), mean)
    m2 = tl.where(opposite, float("inf"), m2)
    store_record(
        out, n, head0, head1, head2, head3, head15,
        n_nan, n_posinf, n_neginf, n_zero, n_subnormal, first_bad, least, most, mean, m2,
    )  # fmt: skip
