"""What does watching cost a training step? A small GPT, plain and with each way to look for NaN.

Run: python benchmarks/bench_step.py [--quick] [--tiny] [--rounds 60] [--threads 1]
Each rival trains a model of its own, one step each in turn, in a new random order every round. "plain again" is the
null: what this machine calls a difference where there is none. Rows go to benchmarks/results/step.jsonl.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "char_gpt"))
import rows
from model import CharGPT, Config
from rivals import RIVALS, Work

import nanscan

AIM = 1.05  # module level over plain
WARM_UP = 3  # steps of each rival that are not counted
RESAMPLES = 2000


def work(small: bool) -> Work:
    """A GPT, its optimizer and its batch. 4 layers, d = 256, T = 128, B = 8; `small`: d = 64, T = 16, B = 2."""
    torch.manual_seed(0)
    width, length, batch = (64, 16, 2) if small else (256, 128, 8)
    model = CharGPT(Config(n_ids=512, length=length, width=width))
    ids = torch.randint(1, 512, (batch, length))
    return Work(model, torch.optim.AdamW(model.parameters(), lr=3e-4), ids, torch.roll(ids, -1, 1))


def take(rounds: int, small: bool) -> dict[str, np.ndarray]:
    """Seconds of each step: name -> [rounds]."""
    rivals = {name: make(work(small)) for name, make in RIVALS.items()}
    order, shuffle = list(rivals), random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(WARM_UP + rounds):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            rivals[name].step()
            seconds[name].append(time.perf_counter() - start)
    nanscan.disable()
    return {name: np.array(values[WARM_UP:]) for name, values in seconds.items()}


def ratio(rival: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """Median over median, and its 95% bootstrap interval over rounds (both arms of a round are drawn together)."""
    picks = np.random.default_rng(0).integers(0, len(plain), (RESAMPLES, len(plain)))
    drawn = np.median(rival[picks], axis=1) / np.median(plain[picks], axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(np.median(rival) / np.median(plain)), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few rounds, nothing written")
    parser.add_argument("--tiny", action="store_true", help="the tiny model, where only the cost per call shows")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{rows.cpu_model()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s); aim: nanscan {AIM}x")
    seconds = take(8 if args.quick else args.rounds, args.quick or args.tiny)
    done = []
    for name, values in seconds.items():
        over, low, high = ratio(values, seconds["plain"])
        row = {"rival": name, "median_s": float(np.median(values)), "rounds": len(values), "tiny": args.tiny}
        row |= {"over_plain": round(over, 4), "low": round(low, 4), "high": round(high, 4)}
        done.append(row)
        print(f"{name:>16} {1e3 * row['median_s']:9.2f} ms   {over:6.3f}x   95% {low:.3f} to {high:.3f}")
    if not args.quick:
        print(f"rows added to {rows.append('step', done)}")


if __name__ == "__main__":
    main()
