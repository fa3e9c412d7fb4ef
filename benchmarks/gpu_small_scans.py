"""A few small scans on a GPU, each compared with the CPU's: the program that compute-sanitizer watches.

Run: compute-sanitizer --tool memcheck --error-exitcode 9 python benchmarks/gpu_small_scans.py
Needs a CUDA device and libnanscan_cuda (exit code 2 without); exits with 1 when a number differs. No kernel of torch
runs: data is copied to the device, so what a checker reports is ours. --stand-in LIBRARY runs it on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))
import gpu

from nanscan import backends
from nanscan.backends import device
from nanscan.record import RECORD_DTYPE

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float64", "complex64")
EXACT = ("n", "n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal", "min", "max", "first_bad", "dtype")


def tensors() -> Iterator[torch.Tensor]:
    """On the CPU: one block and several, a head and a tail, strided, transposed, and one element."""
    torch.manual_seed(0)
    for name in DTYPES:
        dtype = getattr(torch, name)
        wide = dtype if dtype.is_complex else torch.float32
        for n in (1, 250, 70_001):
            x = torch.randn(n, dtype=wide)
            x[::97] = 0
            x[n // 2] = float("nan")
            x[n // 3] = float("inf")
            yield x.to(dtype)
    yield torch.randn(3001)[1:]
    yield torch.randn(60, 50)[::3, 1::2]
    yield torch.randn(60, 50).t()


def differences(number: int, got: np.void, want: np.void) -> list[str]:
    found = [f"tensor {number}: {f} is {got[f]}, on the CPU {want[f]}" for f in EXACT if got[f] != want[f]]
    for name in ("mean", "m2"):
        if not np.isclose(got[name], want[name], rtol=1e-4, atol=1e-4):
            found.append(f"tensor {number}: {name} is {got[name]}, on the CPU {want[name]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", type=Path)
    args = parser.parse_args()
    if args.stand_in:
        core: Any = backends.get().core
        wanted = [np.frombuffer(core.scan(x), RECORD_DTYPE)[0] for x in tensors()]
        device.use(core, args.stand_in, stand_in=True)
        there = list(tensors())
    else:
        core = gpu.require("gpu_small_scans")
        wanted = [np.frombuffer(core.scan(x), RECORD_DTYPE)[0] for x in tensors()]
        # as_strided: a copy to the device keeps no layout that is not dense
        there = [x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0).cuda().as_strided(
            x.size(), x.stride(), x.storage_offset()) for x in tensors()]  # fmt: skip
    session = core.Session(1024)
    if not session.open_device(0):
        sys.exit(f"gpu_small_scans: {session.device_error}")
    for i, x in enumerate(there):
        session.watch(x, i, False)
        session.scan_at(x, i, 0)  # one launch each
    session.scan_values(0)  # and all of them from a table
    session.flush_device()
    records = np.frombuffer(session.drain(), RECORD_DTYPE)
    wrong = [] if len(records) == 2 * len(there) else [f"{len(records)} records of {2 * len(there)}"]
    for record in records:
        wrong += differences(int(record["site"]), record, wanted[int(record["site"])])
    print(*wrong or [f"{len(records)} records of {len(there)} tensors are as on the CPU"], sep="\n")
    session.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
