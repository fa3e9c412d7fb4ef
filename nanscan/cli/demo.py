"""Train a small GPT on Python's own help texts twice, healthy and with a realistic numerical mistake, both watched.

Takes about a minute on one CPU core. The program is examples/char_gpt/train.py, used here as it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nanscan

MISTAKE = "empty-rows"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare ``nanscan demo``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo", help="train a small model, healthy and with a mistake, and see both reports", description=__doc__
    )
    parser.add_argument("--mistake", default=MISTAKE, metavar="NAME", help=f"another planted mistake than {MISTAKE}")
    parser.add_argument("--steps", type=int, metavar="N", help="train N steps instead of the usual number")
    return parser


def example_folder() -> Path:
    """Where the example lives: inside an installed package, or beside the package in a checkout."""
    package = Path(nanscan.__file__).absolute().parent
    candidates = [package / "_examples" / "char_gpt", package.parent / "examples" / "char_gpt"]
    for folder in candidates:
        if (folder / "train.py").is_file():
            return folder
    raise FileNotFoundError(f"the example is in neither of {', '.join(map(str, candidates))}; reinstall nanscan")


def run(args: argparse.Namespace) -> int:
    """Run both trainings as processes of their own; their exit code if one fails."""
    folder = example_folder()
    options = ["--nanscan", *([] if args.steps is None else ["--steps", str(args.steps)])]
    began = time.perf_counter()
    for title, extra in (("a healthy run", []), ("the same with a mistake planted", ["--mistake", args.mistake])):
        train = os.path.relpath(folder / "train.py")
        train = train if not train.startswith("..") else str(folder / "train.py")
        print(f"\n--- {title}\n$ python {' '.join([train, *options, *extra])}", flush=True)
        code = subprocess.run([sys.executable, train, *options, *extra], check=False).returncode
        if code != 0:
            return code
    print(f"\n--- {time.perf_counter() - began:.0f} s. The mistake: {folder / 'mistakes.py'}, {args.mistake!r}")
    print("Watch a program of yours:  nanscan run train.py      (or nanscan.enable(model) in it)")
    return 0
