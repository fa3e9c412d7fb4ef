#!/usr/bin/env python3
"""Train a small character-level GPT on Python's own help texts, healthy or with a planted numerical mistake."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from data import Rows, load_documents
from mistakes import MISTAKES
from model import CharGPT, Config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="plant this mistake; without it the run is healthy")
    parser.add_argument("--nanscan", action="store_true", help="watch the model and print what nanscan saw")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="learn this file instead of the help texts")
    args = parser.parse_args()
    if args.steps < 1 or args.batch_size < 1:
        parser.error(f"--steps and --batch-size must be at least 1, got {args.steps} and {args.batch_size}")
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the model is so small that threads would mostly wait for each other
    rows = Rows(load_documents(args.text), Config.length)
    model = CharGPT(Config(rows.n_ids))
    if args.mistake:
        MISTAKES[args.mistake].plant(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=100)

    scanner = None
    if args.nanscan:
        import nanscan

        scanner = nanscan.enable(model)

    started, recent = time.perf_counter(), []
    for step, (ids, target) in enumerate(rows.batches(args.batch_size, args.steps, args.seed)):
        loss = model(ids, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
        recent.append(loss.detach())
        if step % 50 == 0 or step == args.steps - 1:
            mean = torch.stack(recent).mean().item()
            print(f"step {step:4d}   loss {mean:.3f}   {time.perf_counter() - started:.0f} s", flush=True)
            recent.clear()

    if scanner is not None:
        print(scanner.report())


if __name__ == "__main__":
    main()
