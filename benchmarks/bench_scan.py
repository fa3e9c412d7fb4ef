"""How fast is one scan? Against torch.sum, a copy, isfinite().all() and six separate statistics of the same tensor.

Run: python benchmarks/bench_scan.py [--quick] [--dtypes float32 bfloat16] [--sizes 65536 4194304] [--threads 1]
Everything runs interleaved in this process; times are medians. Rows go to benchmarks/results/scan.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parent))
import rows

SIZES = [1, 4096, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]
DTYPES = ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "complex64"]
DATA = ["normal", "relu", "masked"]


def six_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a hand-made health check computes, one pass or more each."""
    return (x.isnan().sum(), x.isinf().sum(), (x == 0).sum(), torch.stack(x.aminmax()), x.mean(), x.std(correction=0))


def make(dtype: torch.dtype, n: int, data: str) -> torch.Tensor:
    """[n] values: normal ones; half of them zero; or half of them -inf, which takes the exact pass."""
    x = torch.randn(n, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    if data == "relu":
        x = x.relu()
    if data == "masked":
        x[::2] = float("-inf")
    return x.to(dtype)


def rivals_of(core, x: torch.Tensor) -> dict:
    """Name -> call. What torch cannot do for a dtype is left out."""
    target = torch.empty_like(x)
    wide = torch.randn(x.numel())
    calls = {
        "scan": lambda: core.scan(x),
        "sum": lambda: torch.sum(x),
        "sum_float32": lambda: torch.sum(wide),
        "copy": lambda: target.copy_(x),
        "isfinite_all": lambda: torch.isfinite(x).all(),
        "six": lambda: six_statistics(x),
    }
    for name in list(calls):
        try:
            calls[name]()
        except (RuntimeError, NotImplementedError):
            del calls[name]
    return calls


def measure(core, dtype: str, n: int, data: str, rounds: int) -> dict:
    x = make(getattr(torch, dtype), n, data)
    samples = rows.interleaved(rivals_of(core, x), rounds)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    return {
        "benchmark": "scan",
        "dtype": dtype,
        "n": n,
        "data": data,
        "level": core.simd_level(),
        "n_bytes": n * x.element_size(),
        "rounds": rounds,
        "median_s": medians,
        "scan_gb_per_s": n * x.element_size() / medians["scan"] / 1e9,
        "over": {name: medians["scan"] / seconds for name, seconds in medians.items() if name != "scan"},
        "best_s": {name: min(times) for name, times in samples.items()},
    }


def show(row: dict) -> str:
    over = row["over"]
    cells = [
        f"{over[name]:10.2f}" if name in over else f"{'-':>10}"
        for name in ("sum", "sum_float32", "copy", "isfinite_all")
    ]
    six = f"{1 / over['six']:8.1f}x" if "six" in over else f"{'-':>9}"
    return (
        f"{row['dtype']:>14} {row['data']:>7} {row['n']:>9} {row['median_s']['scan'] * 1e6:10.2f} us "
        f"{row['scan_gb_per_s']:7.1f} GB/s {' '.join(cells)} {six}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--data", nargs="+", default=["normal"], choices=DATA)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    import nanscan.backends

    core = nanscan.backends.get().core
    if core is None:
        sys.exit("bench_scan: there is no compiled core to measure; see `nanscan doctor`")
    print(f"{rows.cpu_model()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), {core.simd_level()}")
    print("scan's time, its bandwidth, its time over that of sum, a sum of as many float32, copy and isfinite().all();")
    print("then how many times faster it is than six statistics (nan, inf, zero counts, aminmax, mean, std)")
    heads = ["/sum", "/sum_f32", "/copy", "/isfinite"]
    print(f"{'dtype':>14} {'data':>7} {'n':>9} {'':>26} {' '.join(f'{head:>10}' for head in heads)} {'six':>9}")
    done = []
    for data in args.data:
        for dtype in args.dtypes:
            for n in args.sizes:
                done.append(measure(core, dtype, n, data, 9 if args.quick else args.rounds))
                print(show(done[-1]), flush=True)
    if not args.quick:
        print(f"rows added to {rows.append('scan', done)}")


if __name__ == "__main__":
    main()
