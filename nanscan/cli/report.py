"""Read the event logs of a run and name its first culprit, over all ranks. Needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nanscan.events.event import Event
from nanscan.events.read import RunLog, read_dir
from nanscan.report import Report, report_lines, to_json


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser("report", help=__doc__, description=__doc__)
    parser.add_argument("dir", metavar="DIR", type=Path, help="the folder given as dir= or NANSCAN_DIR")
    parser.add_argument("--json", action="store_true", help="print JSON instead (NaN and Inf as strings)")
    parser.add_argument("--rank", type=int, metavar="N", help="look at one rank only")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the report; 0 whether or not the run was healthy. A folder without logs is a ValueError."""
    report = Report.from_logs(_logs(args.dir, args.rank))
    if args.json:
        print(json.dumps(to_json(report), allow_nan=False, indent=2))
        return 0
    print("\n".join(report_lines(report)))
    if len(report.per_rank) > 1:
        _print_table(report.per_rank)
    for note in _notes(report):
        print(f"nanscan: note: {note}")
    return 0


def _logs(dir: Path, rank: int | None) -> list[RunLog]:
    if not dir.exists():
        raise ValueError(f"DIR={str(dir)!r} does not exist; give the folder that was passed as dir= or NANSCAN_DIR")
    if not dir.is_dir():
        raise ValueError(f"DIR={str(dir)!r} is a file; give the folder it is in")
    logs = read_dir(dir)
    if not logs:
        raise ValueError(
            f"DIR={str(dir)!r} holds no nanscan log (nanscan*.jsonl); "
            "run with nanscan.enable(model, dir=...) or NANSCAN_DIR=... first"
        )
    if rank is None:
        return logs
    found = [log for log in logs if (log.rank or 0) == rank]
    if not found:
        ranks = ", ".join(str(r) for r in sorted({log.rank or 0 for log in logs}))
        raise ValueError(f"--rank {rank}: no such rank in {str(dir)!r}; found {ranks}")
    return found


def _print_table(per_rank: list[tuple[int, Event | None]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="first anomaly per rank", box=box.ASCII, title_justify="left")
    for name in ("rank", "step", "phase", "kind", "where"):
        table.add_column(name, overflow="fold")
    for rank, event in sorted(per_rank, key=lambda item: item[0]):
        row = ["-"] * 4 if event is None else [str(event.step), event.phase, event.kind, escape(event.place)]
        table.add_row(str(rank), *row)
    Console(highlight=False).print(table)


def _notes(report: Report) -> list[str]:
    notes = []
    if report.unfinished:
        ranks = ", ".join(map(str, sorted(set(report.unfinished))))
        notes.append(f"rank {ranks} wrote no end line: still running, or it died")
    if report.older:
        notes.append(f"{report.older} logs of earlier runs in this folder were left out")
    if report.problems:
        notes.append(f"{len(report.problems)} lines could not be read, first {report.problems[0]}")
    return notes
