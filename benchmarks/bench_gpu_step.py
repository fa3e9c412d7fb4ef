"""What does watching cost a training step on a GPU, what does one hook cost the host, and does anything wait?

Run: python benchmarks/bench_gpu_step.py [--quick] [--rounds 30] [--only step hook launches graph] [--results FOLDER]
Needs a CUDA device and libnanscan_cuda (exit code 2 without). Four questions, each with rows of its own in
<results>/gpu_step.jsonl:
  step      a GPT of 12 layers, d = 768, T = 1024, bf16: seconds of a step over the plain one, in turn, 95% intervals
  hook      host microseconds of a module call, by slope over the chain's length, with nothing to wait for
  launches  kernels, copies and waits of one step by the profiler; and a step with torch's sync debug mode at "error"
  graph     seconds of a replay of a captured step, plain and watched
A question that fails leaves a row that says so, and the next one is asked (exit code 1).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent))
import gpu
import rows
from bench_hook_latency import LONG, SHORT, Step, empty_post, empty_pre
from bench_step import ratio
from gpt import GPT, Shape
from rivals import RIVALS, Nanscan, Rival, Work

import nanscan

AIMS = "aims: module level 1.03x, op level 1.3x; a hook 5 us over an empty one; no wait"
STEPS = 3  # per sample, so that the host may run ahead as it does in training
WARM_UP = 2  # samples
HOOK_KINDS = ("plain", "empty", "nanscan")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def work(shape: Shape, capturable: bool = False) -> Work:
    """A GPT in bf16, its optimizer and its batch."""
    torch.manual_seed(0)
    model = GPT(shape).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=capturable)
    ids = torch.randint(0, shape.n_ids, (shape.batch, shape.length), device="cuda")
    return Work(model, optimizer, ids, torch.roll(ids, -1, 1))


def measure_step(shape: Shape, rounds: int) -> list[dict[str, Any]]:
    rivals = {name: make(work(shape)) for name, make in RIVALS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    order, shuffle = list(rivals), random.Random(0).shuffle
    for _ in range(WARM_UP + rounds):
        shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                rivals[name].step()
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - start) / STEPS)
    scans = {name: coverage_of(rival) for name, rival in rivals.items()}
    nanscan.disable()
    taken = {name: np.array(values[WARM_UP:]) for name, values in seconds.items()}
    done = []
    for name, values in taken.items():
        over, low, high = ratio(values, taken["plain"])
        row = {"rival": name, "median_s": float(np.median(values)), "rounds": rounds, **scans[name]}
        row |= {"over_plain": round(over, 4), "low": round(low, 4), "high": round(high, 4)}
        done.append(row)
        print(f"{name:>16} {1e3 * row['median_s']:9.2f} ms   {over:6.3f}x   95% {low:.3f} to {high:.3f}", flush=True)
    return done


def coverage_of(rival: Rival) -> dict[str, Any]:
    """What was really read: a fast step that scanned nothing is no result."""
    scanner = getattr(rival, "scanner", None)
    if scanner is None:
        return {}
    scanner.flush()
    counters = scanner._core.counters()
    return {name: counters[name] for name in ("scans", "dropped", "unscanned")}


def chain(n: int, kind: str) -> tuple[nn.Module, Callable[[], None]]:
    """A chain of n tiny modules on the GPU with one kind of hook, and what takes the hooks off."""
    model = nn.Sequential(*(Step() for _ in range(n)))
    model.register_buffer("place", torch.zeros(1, device="cuda"))  # tells nanscan which device to open
    if kind == "nanscan":
        return model, nanscan.enable(model, on_anomaly="record").close
    if kind == "empty":
        for module in model.modules():
            module.register_forward_pre_hook(empty_pre, with_kwargs=True)
            module.register_forward_hook(empty_post, with_kwargs=True, always_call=True)
    return model, lambda: None


def measure_hook(rounds: int) -> list[dict[str, Any]]:
    done = []
    for grad in (False, True):
        x = torch.ones(1, device="cuda", requires_grad=grad)
        samples: dict[tuple[str, int], list[float]] = {}
        models = {(kind, n): chain(n, kind) for kind in HOOK_KINDS for n in (SHORT, LONG)}
        with torch.set_grad_enabled(grad):
            for turn in range(rounds + 3):
                for key in list(models) if turn % 2 else reversed(models):
                    torch.cuda.synchronize()  # the launch queue is empty: the host never waits for room in it
                    start = time.perf_counter()
                    models[key][0](x)
                    samples.setdefault(key, []).append(time.perf_counter() - start)
        torch.cuda.synchronize()
        for _, close in models.values():
            close()
        median = {key: statistics.median(values[3:]) for key, values in samples.items()}
        us = {kind: 1e6 * (median[kind, LONG] - median[kind, SHORT]) / (LONG - SHORT) for kind in HOOK_KINDS}
        row = {"grad": grad, "rounds": rounds, "module_us": {kind: round(value, 3) for kind, value in us.items()}}
        row["nanscan_over_empty_us"] = round(us["nanscan"] - us["empty"], 3)
        done.append(row)
        print(f"module call, grad {grad!s:>5}: {row['module_us']}, hook {row['nanscan_over_empty_us']} us", flush=True)
    return done


def measure_launches(shape: Shape) -> list[dict[str, Any]]:
    """One step by the profiler; and whether torch itself would have waited in it."""
    done = []
    for name in ("plain", "nanscan module", "nanscan op"):
        rival = RIVALS[name](work(shape))
        for _ in range(3):
            rival.step()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            rival.step()
            torch.cuda.synchronize()  # one wait of our own
        calls: Counter[str] = Counter()
        kernels = ours = 0
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                kernels += 1
                ours += "nanscan" in event.name
            elif event.name.startswith(("cuda", "cu")):
                calls[event.name] += 1
        waits = {wait: calls[wait] for wait in WAITS}
        waits["cudaDeviceSynchronize"] -= 1
        row = {"rival": name, "device_activities": kernels, "nanscan_kernels": ours, "waits": waits}
        row["calls"] = dict(calls.most_common(12))
        row["torch_would_wait"] = torch_would_wait(rival)
        nanscan.disable()
        done.append(row)
        print(f"{name:>16}: {kernels} kernels and copies, {ours} ours; waits {waits}; {row['torch_would_wait']}")
    return done


def torch_would_wait(rival: Rival) -> str:
    """What torch says where waiting is an error; empty if nothing waits that it knows of."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        rival.step()
    except RuntimeError as err:
        return str(err)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def measure_graph(shape: Shape, rounds: int) -> list[dict[str, Any]]:
    done, graphs, rivals = (
        [],
        {},
        {
            "plain": Rival(work(shape, capturable=True)),
            "nanscan module": Nanscan(work(shape, capturable=True)),
        },
    )
    for name, rival in rivals.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                rival.step()
        torch.cuda.current_stream().wait_stream(side)
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            rival.step()
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds):
        for name in list(graphs) if turn % 2 else reversed(graphs):
            samples[name].append(gpu.elapsed_ms(graphs[name].replay, STEPS) / 1e3)
    watched = coverage_of(rivals["nanscan module"])
    plain = np.array(samples["plain"])
    for name, values in samples.items():
        over, low, high = ratio(np.array(values), plain)
        row = {"rival": name, "median_s": statistics.median(values), "rounds": rounds, "over_plain": round(over, 4)}
        row |= {"low": round(low, 4), "high": round(high, 4), **(watched if name != "plain" else {})}
        done.append(row)
        print(f"{name:>16} replay {1e3 * row['median_s']:9.2f} ms   {over:6.3f}x   95% {low:.3f} to {high:.3f}")
    nanscan.disable()
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=("step", "hook", "launches", "graph"))
    parser.add_argument("--quick", action="store_true", help="a tiny model and few rounds, nothing written")
    parser.add_argument("--results", type=Path, default=rows.RESULTS)
    args = parser.parse_args()
    gpu.require("bench_gpu_step")
    shape, rounds = (Shape.tiny(), 5) if args.quick else (Shape(), args.rounds)
    print(f"{gpu.name()}, torch {torch.__version__}; {AIMS}")
    questions: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "hook": lambda: measure_hook(5 if args.quick else 101),
        "launches": lambda: measure_launches(shape),
        "step": lambda: measure_step(shape, rounds),
        "graph": lambda: measure_graph(shape, rounds),
    }
    failed = 0
    for name, ask in questions.items():
        if args.only and name not in args.only:
            continue
        try:
            found = ask()
        except Exception as err:
            traceback.print_exc()
            found, failed = [{"failed": f"{type(err).__name__}: {err}"}], failed + 1
            nanscan.disable()
        common = {"benchmark": "gpu_step", "question": name, **gpu.about()}
        if name != "hook":
            common["shape"] = shape._asdict()
        if not args.quick:
            rows.append("gpu_step", [common | row for row in found], args.results)
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
