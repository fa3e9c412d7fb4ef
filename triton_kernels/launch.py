"""Tensors in, records out: cuts tensors into chunks and launches the kernels on the current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from nanscan.backends.eager import UnscannableTensor, check_scannable
from nanscan.record import RECORD_BYTES, DType, new_record
from nanscan.triton_kernels import kernels
from nanscan.triton_kernels.classify import LAYOUTS
from nanscan.triton_kernels.moments import N_WORDS

NUM_WARPS = 4
CHUNK_BYTES = 1 << 15  # the least that is worth a program
MAX_CHUNKS = 1024  # per tensor: about what a large GPU holds at once; also what one fold program can take
NO_HEADS = (0, 0, 0, 0, 0)
WORD_TYPES = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class Format(NamedTuple):
    """A dtype as the kernels see it; the fields are their constexpr arguments."""

    FORMAT: int
    PAIRS: bool
    BYTES: int
    MIN_NORMAL: int
    INF: int
    THREADS: int
    UNROLL: int  # 16-byte loads in flight per thread

    @property
    def block_bytes(self) -> int:
        return 16 * self.THREADS * self.UNROLL


def format_of(dtype: DType) -> Format:
    part = {DType.C64: DType.F32, DType.C128: DType.F64}.get(dtype, dtype)
    n_bytes, min_normal, inf = LAYOUTS[int(part)]
    unroll = 2 if n_bytes == 1 else 4  # 4 loads are 64 fp8 values, and 200 registers
    return Format(int(part), dtype.is_complex, n_bytes, min_normal, inf, 32 * NUM_WARPS, unroll)


def n_chunks_of(n: int, form: Format) -> tuple[int, int]:
    """(chunks, blocks per chunk) for n elements. Depends on nothing but the count and the format."""
    n_bytes = n * form.BYTES * (2 if form.PAIRS else 1) + 16 - form.BYTES  # the memory may start inside 16 bytes
    blocks = max(-(-n_bytes // form.block_bytes), 1)
    blocks_per_chunk = max(-(-blocks // MAX_CHUNKS), CHUNK_BYTES // form.block_bytes)
    return -(-blocks // blocks_per_chunk), blocks_per_chunk


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as integers: Triton need not know its dtype."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(WORD_TYPES[real.element_size()])


def head_words(header: np.ndarray) -> tuple[int, int, int, int, int]:
    """[1] of RECORD_DTYPE -> its words 0, 1, 2, 3 and 15, which a scan leaves as given (but for flag BAD)."""
    raw = header.reshape(1).view(np.int64)
    return tuple(int(raw[i]) for i in (0, 1, 2, 3, 15))  # type: ignore[return-value]


def as_is(kernel: Any) -> Any:
    return kernel


def launch_one(
    tensor: torch.Tensor, dtype: DType, heads: Sequence[int], wrap: Any = as_is, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[16] int64 on the tensor's device: its record, when the stream gets there. The tensor must be contiguous.

    wrap: what torch.compile wants around a kernel (torch.library.wrap_triton). out: where the record goes; None: anew.
    """
    form = format_of(dtype)
    n = tensor.numel()
    n_chunks, blocks_per_chunk = n_chunks_of(n, form)
    if out is None:
        out = torch.empty(RECORD_BYTES // 8, dtype=torch.int64, device=tensor.device)
    partials = torch.empty((N_WORDS, n_chunks), dtype=torch.int64, device=tensor.device) if n_chunks > 1 else out
    wrap(kernels.scan_one)[(n_chunks,)](
        words(tensor), n, blocks_per_chunk, partials, out, *heads, **form._asdict(),
        num_warps=NUM_WARPS,
    )  # fmt: skip
    if n_chunks > 1:
        wrap(kernels.fold_one)[(1,)](partials, n, n_chunks, out, *heads, LANES=MAX_CHUNKS, num_warps=NUM_WARPS)
    return out


def launch_into(tensor: torch.Tensor, out: torch.Tensor, dtype: int) -> None:
    """As launch_one, with nobody's name in the record: what the core calls for each tensor that a hook saw on a device.

    It is called in the watched program's thread, on its device and stream, below autograd and every mode.
    """
    launch_one(tensor, DType(dtype), NO_HEADS, out=out)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without lazy bits, contiguous (a copy if it was not). Raises UnscannableTensor with the reason."""
    check_scannable(tensor)
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.numel() and tensor.data_ptr() % tensor.element_size():
        raise UnscannableTensor(
            f"tensor at an address that is no multiple of its element size, {tensor.element_size()}: scan its clone()"
        )
    return tensor


def header_of(tensor: torch.Tensor) -> np.ndarray:
    """A header that says what is scanned and on which device: [1] of RECORD_DTYPE."""
    header = new_record()
    header["dtype"] = DType.from_torch_name(str(tensor.dtype))
    if tensor.device.index is not None:
        header["device"] = tensor.device.index
    return header


def scan_record(tensor: torch.Tensor) -> bytes:
    """Statistics of one tensor: a record of 128 bytes. Waits for the device. Raises UnscannableTensor."""
    tensor = readable(tensor)
    header = header_of(tensor)
    if tensor.numel() == 0:
        return header.tobytes()
    with torch.no_grad(), _device(tensor):
        out = launch_one(tensor, DType(int(header["dtype"][0])), head_words(header))
        return out.cpu().numpy().tobytes()


def _device(tensor: torch.Tensor) -> Any:
    """Triton launches on the current device and its current stream."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else torch.no_grad()


class Plan(NamedTuple):
    """Tensors of one format in one launch."""

    form: Format
    table: np.ndarray  # [tensors, TABLE_WORDS] int64
    chunk_row: np.ndarray  # [chunks] int32
    fold_row: np.ndarray  # [tensors of several chunks] int32


def plan_many(addresses: Sequence[int], counts: Sequence[int], headers: np.ndarray) -> list[Plan]:
    """One plan per format present. headers: [tensors] of RECORD_DTYPE, with dtype; its index is the record's slot."""
    plans = []
    for code in np.unique(headers["dtype"]):
        form = format_of(DType(int(code)))
        slots = np.flatnonzero(headers["dtype"] == code)
        table = np.zeros((len(slots), kernels.TABLE_WORDS.value), np.int64)
        first = 0
        for row, slot in zip(table, slots, strict=True):
            n_chunks, blocks_per_chunk = n_chunks_of(counts[slot], form)
            row[:6] = addresses[slot], counts[slot], first, n_chunks, blocks_per_chunk, slot
            row[6:11] = head_words(headers[slot])
            first += n_chunks
        chunk_row = np.repeat(np.arange(len(slots), dtype=np.int32), table[:, 3])
        fold_row = np.flatnonzero(table[:, 3] > 1).astype(np.int32)
        plans.append(Plan(form, table, chunk_row, fold_row))
    return plans


def scan_many(tensors: Sequence[torch.Tensor], headers: np.ndarray, records: torch.Tensor) -> None:
    """One record per tensor into records, [slots >= tensors, 16] int64 on the tensors' one device. Waits for nothing.

    At most two launches and one copy of a table per format present. headers: [tensors] of RECORD_DTYPE: who and where.
    The tensors are contiguous and outlive the launch, or are freed on the current stream.
    """
    headers = headers.copy()
    for i, tensor in enumerate(tensors):
        check_scannable(tensor)
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.device != records.device:
            raise UnscannableTensor(f"tensors[{i}]: must be contiguous, without lazy bits and on {records.device}")
        headers["dtype"][i] = DType.from_torch_name(str(tensor.dtype))
    with _device(records):
        for plan in plan_many([t.data_ptr() for t in tensors], [t.numel() for t in tensors], headers):
            _launch_plan(plan, records)


def _launch_plan(plan: Plan, records: torch.Tensor) -> None:
    """The table, the chunk rows and the fold rows travel together, in one copy."""
    host = np.concatenate([plan.table.reshape(-1).view(np.int32), plan.chunk_row, plan.fold_row])
    moved = torch.from_numpy(host).to(records.device, non_blocking=True)
    n_table, n_chunks = 2 * plan.table.size, len(plan.chunk_row)
    table = moved[:n_table].view(torch.int64)
    chunk_row, fold_row = moved[n_table : n_table + n_chunks], moved[n_table + n_chunks :]
    partials = torch.empty((N_WORDS, n_chunks), dtype=torch.int64, device=records.device)
    kernels.scan_many[(n_chunks,)](
        table, chunk_row, partials, n_chunks, records, **plan.form._asdict(),
        num_warps=NUM_WARPS,
    )  # fmt: skip
    if len(plan.fold_row):
        kernels.fold_many[(len(plan.fold_row),)](
            table, fold_row, partials, n_chunks, records, LANES=MAX_CHUNKS, num_warps=NUM_WARPS
        )
