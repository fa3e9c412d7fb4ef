"""What is launched: a scan of one tensor, a scan of many of one format, and the fold of their partial results.

A tensor of one chunk gets its record from the scan itself, in one launch; the fold serves the others. `table` rows are
[TABLE_WORDS] int64; chunk_row says which row each program works for.

Integer arguments are int64 whatever their value, and not specialized on it: else each new magnitude of a counter would
compile another variant in the middle of a training step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanscan.triton_kernels.moments import fold, scan_chunk, store_record

# A table row: address, n, first chunk, chunks, blocks per chunk, slot, the record's words 0, 1, 2, 3 and 15.
TABLE_WORDS = tl.constexpr(12)


@triton.jit
def store_partial(
    place, n_partials, n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2
):
    tl.store(place + 0 * n_partials, n_nan)
    tl.store(place + 1 * n_partials, n_posinf)
    tl.store(place + 2 * n_partials, n_neginf)
    tl.store(place + 3 * n_partials, n_zero)
    tl.store(place + 4 * n_partials, n_subnormal)
    tl.store(place + 5 * n_partials, n_parts)
    tl.store(place + 6 * n_partials, first_bad)
    tl.store(place + 7 * n_partials, least.to(tl.int64, bitcast=True))
    tl.store(place + 8 * n_partials, most.to(tl.int64, bitcast=True))
    tl.store(place + 9 * n_partials, mean.to(tl.int64, bitcast=True))
    tl.store(place + 10 * n_partials, m2.to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=["n", "blocks_per_chunk", "head0", "head1", "head2", "head3", "head15"])
def scan_one(
    data, n: tl.int64, blocks_per_chunk: tl.int64, partials, out,
    head0: tl.int64, head1: tl.int64, head2: tl.int64, head3: tl.int64, head15: tl.int64,
    FORMAT: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr,
    THREADS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Grid: chunks. data: pointer to integers of BYTES. partials: [N_WORDS, chunks] int64. out: [16] int64."""
    chunk = tl.program_id(0).to(tl.int64)
    n_chunks = tl.num_programs(0).to(tl.int64)
    blocks_per_chunk = blocks_per_chunk.to(tl.int64)
    n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2 = scan_chunk(
        data.to(tl.int64), n.to(tl.int64), chunk * blocks_per_chunk, blocks_per_chunk,
        FORMAT, PAIRS, BYTES, MIN_NORMAL, INF, THREADS, UNROLL,
    )  # fmt: skip
    if n_chunks == 1:
        store_record(
            out, n.to(tl.int64),
            head0.to(tl.int64), head1.to(tl.int64), head2.to(tl.int64), head3.to(tl.int64), head15.to(tl.int64),
            n_nan, n_posinf, n_neginf, n_zero, n_subnormal, first_bad, least, most, mean, m2,
        )  # fmt: skip
    else:
        store_partial(
            partials + chunk, n_chunks,
            n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "n_chunks", "head0", "head1", "head2", "head3", "head15"])
def fold_one(
    partials, n: tl.int64, n_chunks: tl.int64, out,
    head0: tl.int64, head1: tl.int64, head2: tl.int64, head3: tl.int64, head15: tl.int64,
    LANES: tl.constexpr,
):  # fmt: skip
    """Grid: one program."""
    n_chunks = n_chunks.to(tl.int64)
    fold(
        partials, n_chunks, 0, n_chunks, out, n.to(tl.int64),
        head0.to(tl.int64), head1.to(tl.int64), head2.to(tl.int64), head3.to(tl.int64), head15.to(tl.int64), LANES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_partials"])
def scan_many(
    table, chunk_row, partials, n_partials: tl.int64, records,
    FORMAT: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr,
    THREADS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Grid: chunks of all tensors. table: [tensors, TABLE_WORDS]; chunk_row: [chunks] int32; records: [slots, 16]."""
    program = tl.program_id(0).to(tl.int64)
    row = table + tl.load(chunk_row + program).to(tl.int64) * TABLE_WORDS
    blocks_per_chunk = tl.load(row + 4)
    n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2 = scan_chunk(
        tl.load(row), tl.load(row + 1), (program - tl.load(row + 2)) * blocks_per_chunk, blocks_per_chunk,
        FORMAT, PAIRS, BYTES, MIN_NORMAL, INF, THREADS, UNROLL,
    )  # fmt: skip
    if tl.load(row + 3) == 1:  # read only now: what the scan does not need would take registers meanwhile
        store_record(
            records + tl.load(row + 5) * 16, tl.load(row + 1),
            tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9), tl.load(row + 10),
            n_nan, n_posinf, n_neginf, n_zero, n_subnormal, first_bad, least, most, mean, m2,
        )  # fmt: skip
    else:
        store_partial(
            partials + program, n_partials.to(tl.int64),
            n_nan, n_posinf, n_neginf, n_zero, n_subnormal, n_parts, first_bad, least, most, mean, m2,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_partials"])
def fold_many(table, fold_row, partials, n_partials: tl.int64, records, LANES: tl.constexpr):
    """Grid: tensors of more than one chunk. fold_row: [programs] int32, their rows in the table."""
    row = table + tl.load(fold_row + tl.program_id(0)).to(tl.int64) * TABLE_WORDS
    fold(
        partials, n_partials.to(tl.int64), tl.load(row + 2), tl.load(row + 3), records + tl.load(row + 5) * 16,
        tl.load(row + 1), tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9), tl.load(row + 10),
        LANES,
    )  # fmt: skip
