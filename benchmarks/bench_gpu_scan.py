"""How fast is one scan on a GPU? Its share of a copy's bandwidth, beside what people use instead.

Run: python benchmarks/bench_gpu_scan.py [--quick] [--sizes 4096 8589934592] [--results FOLDER]
Needs a CUDA device and libnanscan_cuda (exit code 2 without). Every rival runs in turn on the current stream, timed by
CUDA events around enough calls to fill 2 ms; the figures are medians over rounds. A copy reads and writes every byte,
so its bandwidth is twice its bytes over its time; a scan only reads. Below the size of the L2 cache all of it comes
from there. Rows go to <results>/gpu_scan.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parent))
import gpu
import rows

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 8 * GIB)  # bytes
DTYPES = ("float32", "bfloat16")
OTHERS = ("float16", "float8_e4m3fn", "float8_e5m2", "complex64", "float64")  # at OTHER_SIZE only
OTHER_SIZE = 256 * MIB
AIM = 0.90  # of the copy's bandwidth, from 64 MiB
TARGET_MS, MAX_CALLS = 2.0, 200
# Gradients of a GPT of 12 layers, d = 768, as elements: many small ones, some large.
GRADIENTS = [50304 * 768, 1024 * 768, *[768, 768, 2304 * 768, 2304, 768 * 768, 768] * 12,
             *[768, 768, 3072 * 768, 3072, 3072 * 768, 768] * 12, 768, 768]  # fmt: skip

Calls = dict[str, Callable[[], object]]


class Scanned:
    """Tensors scanned through the core, as a hook does it; records are thrown away between samples."""

    def __init__(self, core: Any, tensors: list[torch.Tensor]) -> None:
        self.session = core.Session(1 << 15)
        if not self.session.open_device(0):
            sys.exit(f"bench_gpu_scan: {self.session.device_error}")
        self.tensors = tensors
        for i, tensor in enumerate(tensors):
            self.session.watch(tensor, i, False)

    def one(self) -> None:
        self.session.scan_at(self.tensors[0], 0, 0)

    def many(self) -> None:
        self.session.scan_values(0)

    def forget(self) -> None:
        self.session.flush_device()
        self.session.drain()


def triton_launch() -> Any:
    """nanscan.triton_kernels.launch, or None where Triton or the kernels are not there."""
    try:
        from nanscan.triton_kernels import launch
    except ImportError as err:
        print(f"the Triton scan is left out: {err}")
        return None
    return launch


def six(x: torch.Tensor) -> None:
    """The counts and moments of a record, one operator after the other."""
    for _ in (torch.isnan(x).sum(), torch.isinf(x).sum(), (x == 0).sum(), x.aminmax(), x.mean(), x.std()):
        pass


def one_tensor(core: Any, launch: Any, x: torch.Tensor) -> tuple[Calls, Scanned]:
    scanned, other = Scanned(core, [x]), torch.empty_like(x)
    calls: Calls = {"copy": lambda: other.copy_(x), "nanscan": scanned.one}
    if launch is not None:
        header = launch.header_of(x)
        kind, heads = launch.DType(int(header["dtype"][0])), launch.head_words(header)
        calls["triton"] = lambda: launch.launch_one(x, kind, heads)
    if not x.dtype.is_complex and x.element_size() > 1:  # torch has no isfinite, mean ... of fp8
        calls["isfinite().all()"] = lambda: torch.isfinite(x).all()
        calls["six statistics"] = lambda: six(x)
    return calls, scanned


def many_tensors(core: Any, launch: Any, tensors: list[torch.Tensor]) -> tuple[Calls, Scanned]:
    import numpy as np

    scanned = Scanned(core, tensors)
    others = [torch.empty_like(x) for x in tensors]
    calls: Calls = {
        "copy": lambda: torch._foreach_copy_(others, tensors),
        "nanscan": scanned.many,
        "_foreach_norm": lambda: torch._foreach_norm(tensors),
        "isfinite().all()": lambda: [torch.isfinite(x).all() for x in tensors],
    }
    if launch is not None:
        headers = np.concatenate([launch.header_of(x) for x in tensors])
        records = torch.zeros((len(tensors), 16), dtype=torch.int64, device="cuda")
        calls["triton"] = lambda: launch.scan_many(tensors, headers, records)
    return calls, scanned


def milliseconds(calls: Calls, scanned: Scanned, rounds: int) -> dict[str, float]:
    """Median milliseconds of one call of each, taken in turn; the order turns around every round."""
    repeats = {}
    for name, call in calls.items():
        call()
        once = gpu.elapsed_ms(call, 1)
        repeats[name] = max(1, min(MAX_CALLS, int(TARGET_MS / max(once, 1e-4))))
        scanned.forget()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls) if turn % 2 else reversed(calls):
            samples[name].append(gpu.elapsed_ms(calls[name], repeats[name]))
            scanned.forget()
    return {name: statistics.median(values) for name, values in samples.items()}


def row_of(kind: str, dtype: str, n_bytes: int, n_tensors: int, ms: dict[str, float], rounds: int) -> dict[str, Any]:
    copy = 2 * n_bytes / ms["copy"]  # bytes per ms
    return {
        "benchmark": "gpu_scan",
        "kind": kind,
        "dtype": dtype,
        "bytes": n_bytes,
        "n_tensors": n_tensors,
        "rounds": rounds,
        "ms": {name: round(value, 5) for name, value in ms.items()},
        "copy_gb_s": round(copy / 1e6, 1),
        "share_of_copy": {name: round(n_bytes / ms[name] / copy, 4) for name in ms if name != "copy"},
        "over_nanscan": {name: round(ms[name] / ms["nanscan"], 2) for name in ms if name != "nanscan"},
        **gpu.about(),
    }


def show(row: dict[str, Any]) -> str:
    share = "  ".join(f"{name} {value:.3f}" for name, value in row["share_of_copy"].items())
    size = f"{row['bytes'] / MIB:10.3f} MiB in {row['n_tensors']}"
    return f"{row['dtype']:>14} {size:<22} copy {row['copy_gb_s']:7.1f} GB/s, share of it: {share}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few rounds and sizes, nothing written")
    parser.add_argument("--results", type=Path, default=rows.RESULTS)
    args = parser.parse_args()
    core = gpu.require("bench_gpu_scan")
    launch = triton_launch()
    sizes, rounds = (args.sizes[:4], 5) if args.quick else (args.sizes, args.rounds)
    print(f"{gpu.name()}, torch {torch.__version__}; aim: nanscan's share at least {AIM} from 64 MiB")
    cases = [(dtype, size) for dtype in args.dtypes for size in sizes]
    cases += [] if args.quick else [(dtype, OTHER_SIZE) for dtype in OTHERS]
    done = []
    for name, size in cases:
        dtype = getattr(torch, name)
        if 2.5 * size > torch.cuda.mem_get_info()[0]:
            print(f"{name} {size / MIB:.0f} MiB is left out: too little free memory")
            continue
        x = gpu.normal(size // dtype.itemsize, dtype)
        calls, scanned = one_tensor(core, launch, x)
        ms = milliseconds(calls, scanned, rounds)
        done.append(row_of("one", name, size, 1, ms, rounds))
        print(show(done[-1]), flush=True)
        scanned.session.close()
        del x, calls, scanned
        torch.cuda.empty_cache()
    for name in args.dtypes:
        dtype = getattr(torch, name)
        tensors = [gpu.normal(n, dtype) for n in GRADIENTS]
        calls, scanned = many_tensors(core, launch, tensors)
        ms = milliseconds(calls, scanned, rounds)
        done.append(row_of("many", name, sum(GRADIENTS) * dtype.itemsize, len(tensors), ms, rounds))
        print(show(done[-1]), flush=True)
        scanned.session.close()
        del tensors, calls, scanned
        torch.cuda.empty_cache()
    if not args.quick:
        print(f"rows added to {rows.append('gpu_scan', done, args.results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
