"""nanscan's CUDA kernels as nvcc's PTX, run in the interpreter: tensors in, records out.

Kernel arguments are made by the host code of the library itself (launch_bytes.cu), so that its planning is run as well.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nanscan.record import RECORD_DTYPE, DType, new_record

from .interpreter import launch
from .memory import GlobalMemory
from .parse import Module

FLAGS = ("-std=c++17", "-O3")
CONJ, NEG = 1, 2
CAPACITY = 64
# How the kernel's name spells an element type: format and parts.
SPELLED = {
    DType.F64: r"3F64ELi1E", DType.F32: r"3F32ELi1E", DType.F16: r"3F16ELi1E", DType.BF16: r"4BF16ELi1E",
    DType.F8_E4M3FN: r"8F8E4M3FNELi1E", DType.F8_E5M2: r"6F8E5M2ELi1E",
    DType.F8_E4M3FNUZ: r"6F8FnuzILi4E.*Li1E", DType.F8_E5M2FNUZ: r"6F8FnuzILi5E.*Li1E",
    DType.C64: r"3F32ELi2E", DType.C128: r"3F64ELi2E",
}  # fmt: skip


class Tensor(ctypes.Structure):
    """nanscan_tensor of scan_cuda.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("numel", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("n_dims", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 16),
        ("strides", ctypes.c_int64 * 16),
        ("flags", ctypes.c_int32),
    )


def compile_ptx(nvcc: str, csrc: Path, arch: str, to: Path, dtypes: Sequence[str] = ()) -> str:
    """PTX of the kernels for compute_80 ...; dtypes: only those, as macro arguments like "kF32, F32, 1"."""
    source = to / f"{arch}.cu"
    only = "".join(f"X({dtype}) " for dtype in dtypes)
    define = f"#define NANSCAN_CUDA_ELEMENTS(X) {only}\n" if dtypes else ""
    source.write_text(f'{define}#include "buffer/device_ring.cu"\n')
    out = to / f"{arch}.ptx"
    _nvcc(nvcc, *FLAGS, f"-I{csrc}", f"-arch={arch}", "-ptx", "-o", str(out), str(source))
    return out.read_text()


def load_host(nvcc: str, csrc: Path, to: Path) -> ctypes.CDLL:
    """launch_bytes.cu as a library."""
    out = to / "launch_bytes.so"
    source = Path(__file__).with_name("launch_bytes.cu")
    flags = ("-std=c++17", "-O1", "-arch=sm_80", "-shared", "-Xcompiler", "-fPIC")
    _nvcc(nvcc, *flags, f"-I{csrc}", "-o", str(out), str(source))
    host = ctypes.CDLL(str(out))
    for name in ("size_of_launch", "size_of_ring", "size_of_partial", "table_bytes"):
        getattr(host, name).restype = ctypes.c_uint64
    return host


def _nvcc(nvcc: str, *args: str) -> None:
    done = subprocess.run([nvcc, *args], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"nvcc {' '.join(args)}:\n{done.stderr[-4000:]}"


class CudaPtx:
    """The kernels of one PTX text."""

    def __init__(self, ptx: str, host: ctypes.CDLL) -> None:
        self.module, self.host = Module(ptx), host
        self.n_threads = host.threads_of_block()
        self.counts: dict[str, int] = {}

    def scan(
        self,
        tensor: torch.Tensor,
        off: int = 0,
        header: np.ndarray | None = None,
        replays: np.ndarray | None = None,
        ring: Ring | None = None,
    ) -> np.ndarray:
        """[1] record of a tensor of any strides whose storage starts off bytes past a multiple of 4096."""
        memory, ring = GlobalMemory(), ring or Ring()
        spec = self._spec(memory, tensor, off)
        header = new_record() if header is None else header
        partials, ticket = np.zeros(2048 * self.host.size_of_partial(), np.uint8), np.zeros(1, np.uint32)
        counter = 0 if replays is None else memory.add(replays)
        argument, n_blocks = self.argument(spec, header, memory.add(ticket), memory.add(partials), counter)
        self.run(spec.dtype, n_blocks, argument, ring.argument(self.host, memory), memory)
        assert int(ticket[0]) == 0, "the ticket is not back at zero"
        return ring.records(1)

    def argument(
        self, spec: Tensor, header: np.ndarray, ticket: int, partials: int, replays: int = 0
    ) -> tuple[np.ndarray, int]:
        """The kernel's argument for one tensor, and the blocks of its grid."""
        argument = np.zeros(self.host.size_of_launch(), np.uint8)
        n_blocks = self.host.fill_one(
            ctypes.byref(spec), header.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(ticket),
            ctypes.c_uint64(partials), ctypes.c_uint64(replays), argument.ctypes.data_as(ctypes.c_void_p),
        )  # fmt: skip
        assert n_blocks > 0, "plan() refused the tensor"
        return argument, n_blocks

    def scan_many(self, tensors: Sequence[torch.Tensor], offs: Sequence[int], headers: np.ndarray) -> np.ndarray:
        """[tensors] records in the order in which they came, from one launch per dtype."""
        memory, ring, n = GlobalMemory(), Ring(), len(tensors)
        specs = (Tensor * n)(*(self._spec(memory, tensor, off) for tensor, off in zip(tensors, offs, strict=True)))
        table = np.zeros(self.host.table_bytes(specs, n), np.uint8)
        assert table.size > 0, "measure() refused the tensors"
        released, size = np.zeros(1, np.uint64), self.host.size_of_launch()
        launches, n_blocks = np.zeros((11, size), np.uint8), np.zeros(11, np.uint32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (headers, table, launches, n_blocks)]
        self.host.fill_many(
            specs, pointers[0], n, pointers[1], ctypes.c_uint64(memory.add(table)),
            ctypes.c_uint64(memory.add(released)), pointers[2], pointers[3],
        )  # fmt: skip
        argument = ring.argument(self.host, memory)
        for dtype in np.flatnonzero(n_blocks):
            self.run(int(dtype), int(n_blocks[dtype]), launches[dtype], argument, memory)
        assert int(released[0]) == 77, "the table was not handed back"
        return ring.records(n)

    def _spec(self, memory: GlobalMemory, tensor: torch.Tensor, off: int) -> Tensor:
        plain = tensor.detach()
        flags = (CONJ if plain.is_conj() else 0) | (NEG if plain.is_neg() else 0)
        storage = torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage()).numpy()
        address = memory.add(storage, off) + plain.storage_offset() * plain.element_size()
        spec = Tensor(data=address, numel=plain.numel(), dtype=int(DType.from_torch_name(str(plain.dtype))))
        spec.n_dims, spec.flags = plain.dim(), flags
        spec.sizes[: plain.dim()], spec.strides[: plain.dim()] = plain.shape, plain.stride()
        return spec

    def run(
        self, dtype: int, n_blocks: int, argument: np.ndarray, ring: bytes, memory: GlobalMemory, only=None
    ) -> None:
        """One launch. only: indices of the blocks to run; all if None."""
        name, blocks = self.name(DType(dtype)), None if only is None else [(block, 0, 0) for block in only]
        args = [argument.tobytes(), ring]
        self.counts = launch(self.module, name, (n_blocks, 1, 1), self.n_threads, args, memory, blocks=blocks)

    def name(self, dtype: DType) -> str:
        (found,) = (name for name in self.module.entries if re.search(rf"7ElementINS_{SPELLED[dtype]}", name))
        return found


class Ring:
    """The memory of a ring: slots, stamps, board, cursor."""

    def __init__(self) -> None:
        self.slots, self.stamps = np.zeros(CAPACITY, RECORD_DTYPE), np.zeros(CAPACITY, np.uint64)
        self.board, self.cursor = np.zeros(8, np.uint64), np.zeros(8, np.uint64)

    def argument(self, host: ctypes.CDLL, memory: GlobalMemory) -> bytes:
        out = np.zeros(host.size_of_ring(), np.uint8)
        arrays = (self.slots, self.stamps, self.board, self.cursor)
        addresses = [ctypes.c_uint64(memory.add(array)) for array in arrays]
        host.fill_ring(*addresses, ctypes.c_uint64(CAPACITY), out.ctypes.data_as(ctypes.c_void_p))
        return out.tobytes()

    def records(self, n: int) -> np.ndarray:
        """The first n records; fails unless exactly n were published, in order."""
        assert self.stamps[: n + 1].tolist() == [*range(1, n + 1), 0], self.stamps[: n + 1]
        return self.slots[:n].copy()
