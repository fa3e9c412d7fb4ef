"""Runs nanscan's Triton kernels in Triton's own interpreter and prints a line per case that went wrong, then "done".

A program of its own: TRITON_INTERPRET is read when a kernel is defined, and such a process cannot compile.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl

from nanscan.record import RECORD_DTYPE, DType, new_record
from nanscan.triton_kernels import launch, op

PAGE = mmap.PAGESIZE


@triton.jit
def probe(to, n):
    count = tl.load(to) * 0
    for _ in range(0, tl.load(to) + n):
        count += 1
    tl.store(to, count)


def load_oracle():
    """tests/scan/conftest.py: first_mismatch and the planted tensors."""
    path = Path(__file__).resolve().parents[1] / "scan" / "conftest.py"
    spec = importlib.util.spec_from_file_location("scan_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with an unreadable page right behind them; a step beyond it ends the process."""
    if tensor.is_complex():
        return torch.view_as_complex(guarded(torch.view_as_real(tensor)))
    raw = tensor.reshape(-1).view(torch.uint8)
    if not raw.numel():
        return tensor
    n_pages = -(-raw.numel() // PAGE)
    memory = mmap.mmap(-1, (n_pages + 1) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = n_pages * PAGE - raw.numel()
    memory[offset : offset + raw.numel()] = raw.numpy().tobytes()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + n_pages * PAGE), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset).reshape(tensor.shape)


def values(oracle, dtype: torch.dtype, n: int, fraction: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    real, parts = dtype.to_real(), 2 * n if dtype.is_complex else n
    out = (torch.randn(parts, generator=generator, dtype=torch.float64) + 3).to(real)
    pool = oracle.specials(real, ends=n % 2 == 0)
    planted = pool[torch.randint(len(pool), (parts,), generator=generator)]
    out = torch.where(torch.rand(parts, generator=generator) < fraction, planted, out)
    return torch.view_as_complex(out.reshape(n, 2)) if dtype.is_complex else out


def main() -> None:
    oracle = load_oracle()
    try:
        count = torch.ones(1, dtype=torch.int32)
        probe[(1,)](count, 2)
        assert int(count) == 3
    except Exception as err:
        sys.exit(f"unusable: the interpreter of triton {triton.__version__} with numpy {np.__version__}: {err}")

    def check(what: str, tensor: torch.Tensor, record: bytes | np.ndarray) -> None:
        tolerance = 1e-11 if tensor.dtype.to_real() == torch.float64 else 5e-6
        found = np.frombuffer(record, RECORD_DTYPE) if isinstance(record, bytes) else record.reshape(1)
        mismatch = oracle.first_mismatch(tensor, found, tolerance)
        if mismatch:
            print(f"{what}: {mismatch}")

    for dtype in oracle.TOLERANCE:
        block = (4096 if dtype.itemsize == 1 else 8192) // dtype.itemsize
        cases = [(0, 0.0), (33, 0.4), (block + 1, 0.4)]
        if dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
            cases += [(block - 1, 0.0), (2 * block, 0.0)]
        for n, fraction in cases:
            tensor = guarded(values(oracle, dtype, n, fraction))
            check(f"guarded n={n}", tensor, launch.scan_record(tensor))
    for dtype in (torch.float32, torch.float16, torch.complex128):
        tensor = values(oracle, dtype, 32768 // dtype.itemsize + 7, 0.1)  # two programs
        check("fold", tensor, launch.scan_record(tensor))

    # Layouts, lazy bits, the operator
    square = values(oracle, torch.float32, 900, 0.4).reshape(30, 30)
    conjugate = torch.view_as_complex(square.reshape(450, 2)).conj()
    for tensor in (square.t(), square[::2, 1:], square[3:4].expand(5, 30), conjugate):
        check("layout", tensor, launch.scan_record(tensor))
        check("operator", tensor, torch.ops.nanscan.scan_triton(tensor).numpy().tobytes())
    assert op.scan_triton is not None

    # Many tensors of several formats: one call
    tensors = [values(oracle, torch.float32, n, 0.1) for n in (5, 0, 9000, 2048)]
    tensors += [values(oracle, torch.bfloat16, n, 0.1) for n in (7, 17_000)]
    headers = np.concatenate([new_record() for _ in tensors])
    headers["site"] = np.arange(len(tensors))
    records = torch.zeros((len(tensors), 16), dtype=torch.int64)
    launch.scan_many(tensors, headers, records)
    found = records.numpy().view(np.uint8).reshape(-1).view(RECORD_DTYPE)
    for tensor, record, site in zip(tensors, found, range(len(tensors)), strict=True):
        check("many", tensor, record)
        if int(record["site"]) != site or DType(int(record["dtype"])) == DType.UNKNOWN:
            print(f"many: record {site} says site {record['site']}, dtype {record['dtype']}")
    print("done")


if __name__ == "__main__":
    main()
