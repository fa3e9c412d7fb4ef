"""nanscan's Triton kernels as compiled PTX, run in the PTX interpreter: tensors in, records out.

The host's part is that of triton_kernels/launch.py, with addresses of the interpreter's memory in place of a GPU's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch

from nanscan.record import DType, new_record
from nanscan.triton_kernels import launch
from nanscan.triton_kernels.moments import N_WORDS
from nanscan_ptx.interpreter import launch as run_ptx
from nanscan_ptx.memory import GlobalMemory
from nanscan_ptx.parse import Module
from nanscan_triton_tests import aot


def raw_bytes(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous tensor's memory: [bytes] uint8."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)


BARRIER = re.compile(r"^\s*(?:@!?%p\d+ )?(?:bar|barrier)(?:\.cta)?\.sync[^;]*;", re.MULTILINE)


def without(position: int, of_kernel: str) -> Callable[[str, str], str]:
    """An edit that deletes one barrier of one kernel."""
    return replaced(BARRIER, position, of_kernel, "")


def replaced(pattern: re.Pattern[str], position: int, of_kernel: str, by: str) -> Callable[[str, str], str]:
    """An edit of one of the places of one kernel where the pattern matches."""

    def edit(kernel: str, ptx: str) -> str:
        if kernel != of_kernel:
            return ptx
        found = list(pattern.finditer(ptx))[position]
        return ptx[: found.start()] + found.expand(by) + ptx[found.end() :]

    return edit


class TritonPtx:
    """The kernels of one target. edit: what to do to the PTX text of a kernel first, for planted mistakes."""

    def __init__(self, target: str, edit: Callable[[str, str], str] = lambda kernel, ptx: ptx) -> None:
        self.target, self._edit = target, edit
        self._modules: dict[tuple[object, ...], tuple[Module, str, int]] = {}
        self.counts: dict[str, int] = {}

    def scan(self, tensor: torch.Tensor, off: int = 0, header: np.ndarray | None = None) -> np.ndarray:
        """[1] record of a contiguous tensor whose memory starts off bytes past a multiple of 4096."""
        memory = GlobalMemory()
        dtype = DType.from_torch_name(str(tensor.dtype))
        form, n = launch.format_of(dtype), tensor.numel()
        header = new_record() if header is None else header
        header["dtype"] = dtype
        heads = launch.head_words(header)
        n_chunks, blocks_per_chunk = launch.n_chunks_of(n, form)
        out, partials = np.zeros(16, np.int64), np.zeros((N_WORDS, n_chunks), np.int64)
        data, to, parts = memory.add(raw_bytes(tensor), off), memory.add(out), memory.add(partials)
        self.run("scan_one", dtype, n_chunks, [data, n, blocks_per_chunk, parts, to, *heads], memory)
        if n_chunks > 1:
            self.run("fold_one", None, 1, [parts, n, n_chunks, to, *heads], memory)
        return out.view(np.uint8).view(header.dtype)

    def scan_many(self, tensors: Sequence[torch.Tensor], offs: Sequence[int]) -> np.ndarray:
        """[tensors] records, from one scan and at most one fold per dtype present."""
        memory = GlobalMemory()
        headers = np.concatenate([new_record() for _ in tensors])
        headers["dtype"] = [DType.from_torch_name(str(tensor.dtype)) for tensor in tensors]
        headers["site"] = np.arange(len(tensors)) + 7
        addresses = [memory.add(raw_bytes(tensor), off) for tensor, off in zip(tensors, offs, strict=True)]
        records = np.zeros((len(tensors), 16), np.int64)
        to = memory.add(records)
        for plan in launch.plan_many(addresses, [tensor.numel() for tensor in tensors], headers):
            n_chunks = len(plan.chunk_row)
            table, parts = memory.add(plan.table), memory.add(np.zeros((N_WORDS, n_chunks), np.int64))
            dtype = DType(int(headers["dtype"][plan.table[0, 5]]))
            self.run("scan_many", dtype, n_chunks, [table, memory.add(plan.chunk_row), parts, n_chunks, to], memory)
            if len(plan.fold_row):
                args = [table, memory.add(plan.fold_row), parts, n_chunks, to]
                self.run("fold_many", None, len(plan.fold_row), args, memory)
        return records.view(np.uint8).reshape(-1).view(headers.dtype)

    def run(self, kernel, dtype, n_programs, args, memory, blocks=None) -> None:
        """One launch in the interpreter."""
        module, name, shared = self._module(kernel, dtype)
        grid, n_threads = (n_programs, 1, 1), 32 * launch.NUM_WARPS
        self.counts = run_ptx(module, name, grid, n_threads, args, memory, shared, blocks)

    def text(self, kernel: str, dtype: DType | None = None) -> str:
        """The PTX, unedited."""
        return aot.build(kernel, self.target, dtype).asm["ptx"]

    def _module(self, kernel: str, dtype: DType | None) -> tuple[Module, str, int]:
        key = (kernel, dtype)
        if key not in self._modules:
            compiled = aot.build(kernel, self.target, dtype)
            module = Module(self._edit(kernel, compiled.asm["ptx"]))
            self._modules[key] = (module, next(iter(module.entries)), compiled.metadata.shared)
        return self._modules[key]
