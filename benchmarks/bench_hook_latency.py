"""How long does one module hook take? nanscan's, empty Python hooks of the same kinds, and one that checks and waits.

Run: python benchmarks/bench_hook_latency.py [--quick] [--threads 1]
A chain of small modules is called plain and with each kind of hook, interleaved in this process. Two chain lengths
separate what a module costs from what a step costs: time per hook is the slope. Rows go to
benchmarks/results/hook_latency.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent))
import rows

import nanscan

OUTPUTS = {"one element": (1,), "64 KiB": (128, 128)}
SHORT, LONG = 32, 160  # modules in a chain
AIM_US = 1.0  # over the empty hooks, for one element
KINDS = ("plain", "empty", "check", "nanscan")


class Step(nn.Module):
    """The cheapest module whose output is a new value: a negation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()


def empty_pre(module: nn.Module, args: tuple, kwargs: dict) -> None:
    return None


def empty_post(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
    return None


def check(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
    if not torch.isfinite(output).all().item():
        raise FloatingPointError(type(module).__name__)


def chain(n: int, kind: str) -> tuple[nn.Module, Callable[[], None]]:
    """A chain of n modules with one kind of hook on each, and what takes the hooks off."""
    model = nn.Sequential(*(Step() for _ in range(n)))
    if kind == "nanscan":
        return model, nanscan.enable(model, on_anomaly="record").close
    for module in model.modules():
        if kind == "empty":
            module.register_forward_pre_hook(empty_pre, with_kwargs=True)
            module.register_forward_hook(empty_post, with_kwargs=True, always_call=True)
        elif kind == "check":
            module.register_forward_hook(check)
    return model, lambda: None


def slopes(seconds: dict[tuple[str, int], float]) -> dict[str, float]:
    """Microseconds per module of each kind, from the times of both chains."""
    return {kind: 1e6 * (seconds[kind, LONG] - seconds[kind, SHORT]) / (LONG - SHORT) for kind in KINDS}


def measure(output: str, grad: bool, rounds: int) -> dict:
    """One row: microseconds per module over the plain chain, by kind of hook, from medians.

    "quiet" is the same from the fastest tenth of samples: where the two differ, the machine was busy.
    """
    x = torch.randn(OUTPUTS[output]).requires_grad_(grad)
    calls, closers = {}, []
    for kind in KINDS:
        for n in (SHORT, LONG):
            model, close = chain(n, kind)
            calls[kind, n] = lambda model=model: model(x)
            closers.append(close)
    with torch.set_grad_enabled(grad):
        samples = rows.interleaved(calls, rounds)
    for close in closers:
        close()
    median = slopes({key: statistics.median(values) for key, values in samples.items()})
    quiet = slopes({key: statistics.quantiles(values, n=10)[0] for key, values in samples.items()})
    return {
        "output": output,
        "grad": grad,
        "rounds": rounds,
        "plain_us": round(median["plain"], 3),
        "over_plain_us": {kind: round(median[kind] - median["plain"], 3) for kind in KINDS[1:]},
        "nanscan_over_empty_us": round(median["nanscan"] - median["empty"], 3),
        "nanscan_over_empty_quiet_us": round(quiet["nanscan"] - quiet["empty"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{rows.cpu_model()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    print(f"microseconds per module over the plain call; aim: nanscan at most {AIM_US} over empty hooks, one element")
    print(f"{'output':>12} {'grad':>6} {'empty':>8} {'check':>8} {'nanscan':>8} {'nanscan - empty':>16} {'quiet':>6}")
    done = []
    for output in OUTPUTS:
        for grad in (False, True):
            row = measure(output, grad, 15 if args.quick else args.rounds)
            done.append(row)
            cells = " ".join(f"{row['over_plain_us'][kind]:8.2f}" for kind in ("empty", "check", "nanscan"))
            last = f"{row['nanscan_over_empty_us']:16.2f} {row['nanscan_over_empty_quiet_us']:6.2f}"
            print(f"{output:>12} {grad!s:>6} {cells} {last}", flush=True)
    if not args.quick:
        print(f"rows added to {rows.append('hook_latency', done)}")


if __name__ == "__main__":
    main()
