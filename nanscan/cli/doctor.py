"""Say what nanscan finds on this machine, in one block to paste into a bug report, and prove that it works.

The proof: a NaN is planted in a tiny model, and must be found. Never raises; exit code 0 if nanscan is usable here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from nanscan._version import __version__


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found. Only "fail" makes nanscan unusable."""

    status: str  # "ok" | "warn" | "skip" | "fail"
    name: str
    detail: str


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare ``nanscan doctor``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor", help="check this installation, with a self-test", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run every probe, print, and tell whether nanscan is usable."""
    findings = [_guarded(name, probe, status) for name, probe, status in PROBES]
    usable = all(finding.status != "fail" for finding in findings)
    if args.json:
        print(json.dumps({**_world(), "usable": usable, "checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        world = _world()
        print(f"nanscan {world['nanscan']}   python {world['python']}   torch {world['torch']}   {world['platform']}")
        for finding in findings:
            _print(finding)
        print("usable" if usable else "NOT usable here: mend what is marked [fail], then run nanscan doctor again")
    return 0 if usable else 1


def _guarded(name: str, probe: Callable[[], tuple[str, str]], status_of_a_crash: str) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status, detail = probe()
    except Exception as error:
        status, detail = status_of_a_crash, f"{type(error).__name__}: {error}"
    return Finding(status, name, " ".join(detail.split()))


def _world() -> dict[str, str]:
    try:
        from torch.version import __version__ as torch_version
    except Exception:
        torch_version = "not importable"
    return {
        "nanscan": __version__,
        "python": platform.python_version(),
        "torch": str(torch_version),
        "platform": f"{sys.platform} {platform.machine()}",
    }


def _settings() -> tuple[str, str]:
    from nanscan import config

    settings, usual = config.read_env(), config.read_env({})
    names = [field.name for field in fields(settings)]
    found = [f"{name}={getattr(settings, name)}" for name in names if getattr(settings, name) != getattr(usual, name)]
    return ("warn" if settings.off else "ok"), "  ".join(found) or "nothing is set in the environment"


def _torch() -> tuple[str, str]:
    import torch

    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cpus"
    return "ok", f"{threads}, CUDA {torch.version.cuda or 'not in this build'}"


def _core() -> tuple[str, str]:
    from nanscan import backends

    backend = backends.get()
    if backend.core is None:
        return "warn", f"plain PyTorch, right but much slower: {backend.why}"
    return "ok", f"native ({backend.core.simd_level()}), {backend.why}"


def _gpu() -> tuple[str, str]:
    import torch

    from nanscan import backends, config
    from nanscan.backends import watching

    there = f"{torch.cuda.device_count()} here" if torch.cuda.is_available() else "none here"
    reader = watching.forecast(backends.get().core, config.read_env().backend)
    usable = not reader.startswith("nothing") or not torch.cuda.is_available()
    return ("ok" if usable else "warn"), f"{there}; watched tensors on one would be read by {reader}"


def _compiler() -> tuple[str, str]:
    import torch

    from nanscan import _build

    try:
        found = _build.recipe(torch, os.environ)
    except _build.BuildError as error:
        return "warn", f"{error}: fine with a core built at install, else plain PyTorch is used"
    return "ok", f"{found.compiler_version} ({' '.join(found.compiler)}), {found.ninja}"


def _run_dir() -> tuple[str, str]:
    from nanscan import config

    folder = config.read_env().dir or "."
    with tempfile.TemporaryFile(dir=folder):
        return "ok", f"{os.path.abspath(folder)} is writable"


@contextlib.contextmanager
def _watched(model: Any) -> Iterator[Any]:
    import nanscan

    with (  # a folder of its own, not NANSCAN_DIR: the logs there are of the user's runs
        tempfile.TemporaryDirectory() as folder,
        nanscan.enable(model, on_anomaly="record", clock="manual", dir=folder) as scanner,
    ):
        yield scanner


def _compile() -> tuple[str, str]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with _watched(model):
        torch.compile(model, backend=count, fullgraph=True)(torch.zeros(2, 4))
    return ("ok" if len(graphs) == 1 else "warn"), f"a watched model stays {len(graphs)} graph(s)"


def _self_test() -> tuple[str, str]:
    import torch
    from torch import nn

    from nanscan import config

    if config.read_env().off:
        return "skip", "NANSCAN=0 switches nanscan off"

    class Planted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(torch.arange(x.numel()).view_as(x) == 5, float("nan"))

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Planted(), nn.Linear(4, 1))
    began = time.perf_counter()
    with _watched(model) as scanner:
        model(torch.ones(2, 4)).sum().backward()
        scanner.step()
        scanner.flush()
        first = scanner.first
    took_ms = 1000 * (time.perf_counter() - began)
    if first is None:
        return "fail", "a NaN planted in module 2 was not found"
    found = f"{first.kind} in module {first.module!r}, {first.phase}, element {first.first_bad_index}"
    if first.module != "2" or first.phase != "forward":
        return "fail", f"a NaN planted in module '2' was taken for {found}"
    return "ok", f"planted NaN found: {found}, {took_ms:.0f} ms"


PROBES: tuple[tuple[str, Callable[[], tuple[str, str]], str], ...] = (  # name, probe, what it means if it crashes
    ("settings", _settings, "fail"),
    ("torch", _torch, "fail"),
    ("core", _core, "fail"),
    ("GPU", _gpu, "warn"),
    ("C++ compiler", _compiler, "warn"),
    ("torch.compile", _compile, "warn"),
    ("run dir", _run_dir, "warn"),
    ("self-test", _self_test, "fail"),
)

_COLOURS = {"ok": "green", "warn": "yellow", "skip": "dim", "fail": "bold red"}


def _print(finding: Finding) -> None:
    mark, rest = f"[{finding.status}]".ljust(7), f"{finding.name.ljust(14)} {finding.detail}"
    try:  # colour on a terminal; the same words everywhere
        from rich.console import Console
        from rich.text import Text

        line = Text(mark, style=_COLOURS[finding.status]).append(Text(rest, style="not bold"))
        Console(highlight=False).print(line, soft_wrap=True)
    except Exception:
        print(mark + rest)
