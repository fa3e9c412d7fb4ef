"""Who finds the first wrong value? The tasks of tests/tasks, each under each way to look for it, and what it costs.

Run: python benchmarks/compare_peers.py [--quick] [--times] [--rounds 24]
     python benchmarks/compare_peers.py --markdown
     python benchmarks/compare_peers.py --cell T1 'nanscan, op level'
The first appends rows to benchmarks/results/compare_peers.jsonl, the second turns the newest ones into the tables of
docs/comparison.md, the third prints the row of one task under one peer.
Every task runs in a process of its own under every peer (peers.py); a rule judges what was said by the task's truth.
Step times: processor time, the full-size GPT of T8, one step of each peer in turn, in a new random order every round.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import inspect
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))
import peers
import peers_page
import rows
from peers import PEERS, Finding

PROGRAMS = rows.RESULTS.parent.parent / "tests" / "tasks" / "tasks.py"
STEPS = 2  # of a task that goes wrong in its first step
HEALTHY_STEPS = 50
T7_STEPS = 200  # at most; both diverge before
WARM_UP = 2


@dataclass(frozen=True)
class Plan:
    """A task: its builder in tasks.py, and what its Task does not say.

    Args:
        born: class or function with the line that ends in "# ORIGIN". ops: what may be named there: the op or node, or
            the op inside the node that makes the value. reader: class of the first reader of memory written by no op.
        slow: argument of t7().
    """

    about: str
    builder: str
    born: str | None = None
    ops: tuple[str, ...] = ()
    reader: str | None = None
    slow: bool | None = None


TASKS = {
    "T1": Plan("`exp` overflows between two layers", "t1", "MLP", ("aten::exp",)),
    "T2": Plan("a row of an attention mask hides every key", "t2", "Attention", ("aten::_softmax", "aten::softmax")),
    "T3a": Plan("gradient of `sqrt` at 0", "t3a", "SqrtNet", ("SqrtBackward0", "aten::div")),
    "T3b": Plan("gradient of `acos` at 1, behind `where`", "t3b", "WhereNet", ("AcosBackward0", "aten::rsqrt")),
    "T4": Plan("a custom Function's backward makes Inf", "t4", "BadScale", ("BadScaleBackward", "aten::mul")),
    "T5": Plan("a custom C++ op returns NaN", "t5", "CppOp", ("nanscan_tasks::nan_scale",)),
    "T6": Plan("C code writes a NaN through a pointer", "t6", "Scribbler", ("aten::sigmoid",), "Scribbler"),
    "T6b": Plan("the same, read in another module", "t6b", "ScribbleElsewhere", ("aten::add",), "Join"),
    "T7": Plan("the learning rate ramps up", "t7", slow=False),
    "T7 slow": Plan("the learning rate is a little too high", "t7", slow=True),
    "T8": Plan("healthy, additive mask of -Inf", "t8"),
    "T8b": Plan("healthy, that mask is an input", "t8b"),
}
NEEDS_EXTENSION = ("T5", "T6", "T6b")


@functools.cache
def programs() -> ModuleType:
    """tests/tasks/tasks.py, loaded by its path."""
    spec = importlib.util.spec_from_file_location("nanscan_tasks", PROGRAMS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def marked_line(owner: str, mark: str) -> int:
    """Number of the line of a class in tasks.py that carries a mark."""
    lines, start = inspect.getsourcelines(getattr(programs(), owner))
    return next(start + i for i, line in enumerate(lines) if mark in line)


def module_of(task: Any, kind: str) -> str:
    return next(name for name, module in task.model.named_modules() if type(module).__name__ == kind)


# ---- the rule


def judge(plan: Plan, task: Any, found: Finding | None) -> tuple[str, list[str]]:
    """(verdict, fields that are right) of a task with a place.

    right: the op and the source line; for memory written by no op (T6) it must say so and name the first reader.
    partly: at least one of op, line and module. wrong: none of them, or the wrong phase. silent: nothing was said.
    """
    if plan.born is None:
        return ("right" if found is None else "false alarm"), []
    if found is None:
        return "silent", []
    truth: dict[str, Any] = {"phase": task.phase, "op": plan.ops, "module": task.module}
    truth["line"] = marked_line(plan.born, "# ORIGIN")
    if plan.reader is not None and found.external:
        truth["line"] = marked_line(plan.reader, "# first reader")
    elif plan.reader is not None:  # the reader is innocent: only the writer's place counts
        truth |= {"op": (), "module": module_of(task, plan.born)}
    correct = [
        name
        for name, value in truth.items()
        if getattr(found, name) == value or (name == "op" and found.op in plan.ops and value)
    ]
    false_claim = "phase" not in correct or (found.external and plan.reader is None)
    if false_claim or not {"op", "line", "module"} & {*correct}:
        return "wrong", correct
    return ("right" if {"op", "line"} <= {*correct} else "partly"), correct


def judge_in_time(started: int, bad: int, told: int | None) -> str:
    """T7: right if told before the first non-finite loss or gradient, partly if only then."""
    if told is None:
        return "silent"
    return "false alarm" if told < started else "right" if told < bad else "partly"


# ---- one cell


def cell(name: str, peer: str, extension: str = "") -> dict[str, Any]:
    """The row of one task under one peer. `extension` is the folder where T5 and T6 were compiled."""
    plan, tasks = TASKS[name], programs()
    torch.set_num_threads(1)
    if name in NEEDS_EXTENSION:
        tasks.build_extension(extension)
    row: dict[str, Any] = {"task": name, "peer": peer}
    lr_at, bad = None, None
    if plan.slow is None:
        task, steps = getattr(tasks, plan.builder)(), STEPS if plan.born else HEALTHY_STEPS
    else:
        bad = tasks.first_bad_step(*tasks.t7(plan.slow), T7_STEPS, lambda: None)
        task, lr_at = tasks.t7(plan.slow)
        steps = bad + 1
    watch = PEERS[peer](task.model, str(PROGRAMS))
    found, told = None, None
    for step in range(steps):
        for group in task.optimizer.param_groups if lr_at else ():
            group["lr"] = lr_at(step)
        found = watch.step(task.step)
        told = step
        if found is not None:
            break
    last = watch.close()
    found = found or last
    told = None if found is None else told
    if lr_at is None:
        row["verdict"], row["correct"] = judge(plan, task, found)
    else:
        started = next(step for step in range(steps) if lr_at(step) != lr_at(0))
        row |= {"verdict": judge_in_time(started, bad, told), "bad_step": bad}
    row |= {"steps": steps, "told_at_step": told, "named": "" if found is None else found.named}
    said = {} if found is None else dataclasses.asdict(found)
    number = said.pop("line", None)
    said["line"] = None if number is None else PROGRAMS.read_text().splitlines()[number - 1].strip()
    return row | {"said": said if found else None}


def all_cells() -> list[dict[str, Any]]:
    """Every cell, each in a fresh process."""
    done = []
    with tempfile.TemporaryDirectory() as folder:
        programs().build_extension(folder)
        for name in TASKS:
            for peer in PEERS:
                command = [sys.executable, __file__, "--cell", name, peer, "--extension", folder]
                run = subprocess.run(command, capture_output=True, text=True, timeout=900)
                if run.returncode != 0:
                    raise RuntimeError(f"{name} under {peer} ended with {run.returncode}:\n{run.stderr[-2000:]}")
                done.append(json.loads(run.stdout.splitlines()[-1]))
                print(f"{name:8} {peer:24} {done[-1]['verdict']:12} {done[-1]['named']}", flush=True)
    return done


# ---- cost


def step_times(rounds: int, small: bool) -> list[dict[str, Any]]:
    """Rows of the median step over the plain one, each peer on a GPT of its own.

    Processor time of all threads, not the clock's: on a busy machine the clock tells mostly who else was running.
    """
    from bench_step import ratio

    kinds = {"plain": peers.Peer, "plain again": peers.Peer, **PEERS, "nanscan, op level": peers.NanscanOpInTurn}
    tasks = {name: programs().t8(small=small) for name in kinds}
    watches = {name: kind(tasks[name].model, str(PROGRAMS)) for name, kind in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    order, shuffle = list(kinds), random.Random(0).shuffle
    for _ in range(WARM_UP + rounds):
        shuffle(order)
        for name in order:
            start = time.process_time()
            watches[name].step(tasks[name].step)
            seconds[name].append(time.process_time() - start)
    for watch in watches.values():
        watch.close()
    times = {name: np.array(values[WARM_UP:]) for name, values in seconds.items()}
    done = []
    for name, values in times.items():
        over, low, high = (round(value, 3) for value in ratio(values, times["plain"]))
        row = {"task": "step time", "peer": name, "over_plain": over, "low": low, "high": high}
        done.append(row | {"median_s": round(float(np.median(values)), 5), "rounds": rounds})
        print(f"{name:>24} {over:7.3f}x   95% {low:.3f} to {high:.3f}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="no extension tasks, a tiny model, nothing written")
    parser.add_argument("--times", action="store_true", help="the step times only")
    parser.add_argument(
        "--markdown", action="store_true", help="write the tables of docs/comparison.md, measure nothing"
    )
    parser.add_argument("--cell", nargs=2, metavar=("TASK", "PEER"), help="one cell, as a JSON line")
    parser.add_argument("--extension", default="", help="with --cell: folder of the compiled extension")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.markdown:
        print(f"wrote {peers_page.write(TASKS, PEERS)}")
        return
    if args.cell:
        print(json.dumps(cell(*args.cell, extension=args.extension)))
        return
    if args.quick:
        for name in TASKS.keys() - NEEDS_EXTENSION:
            for peer in PEERS:
                row = cell(name, peer)
                print(f"{name:8} {peer:24} {row['verdict']:12} {row['named']}", flush=True)
        step_times(3, small=True)
        return
    done = ([] if args.times else all_cells()) + step_times(args.rounds, small=False)
    print(f"rows added to {rows.append(peers_page.RESULTS, done)}; --markdown writes the page")


if __name__ == "__main__":
    main()
