"""The tables of docs/comparison.md, out of the rows of benchmarks/results/compare_peers.jsonl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import rows

RESULTS = "compare_peers"
PAGE = rows.RESULTS.parent.parent / "docs" / "comparison.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
VERDICTS = ("right", "partly", "wrong", "silent", "false alarm")
NULL = "plain again"
Row = Mapping[str, Any]


def newest() -> dict[tuple[str, str], Row]:
    """The newest row of each task and peer."""
    lines = (rows.RESULTS / f"{RESULTS}.jsonl").read_text().splitlines()
    return {(row["task"], row["peer"]): row for row in map(json.loads, lines)}


def cell(row: Row) -> str:
    """A verdict and what was named."""
    verdict, named = row["verdict"], row["named"]
    if "bad_step" in row and verdict in ("right", "partly"):
        lead = row["bad_step"] - row["told_at_step"]
        named = f"warned {lead} steps before" if lead else "at that step, not before"
    elif verdict == "right" and not named:
        named = "silent"
    return f"**{verdict}** {named}" if verdict == "right" else f"{verdict}{', ' * bool(named)}{named}"


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def tables(found: Mapping[tuple[str, str], Row], tasks: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    """Both tables and the machine they were measured on. `tasks` have an `about`, `peers` a `by_hand`."""
    text = line(["", *VERDICTS, "step over plain (95 %)", "by hand"]) + line(["---"] * (len(VERDICTS) + 3))
    for peer in (*peers, NULL):
        step = found["step time", peer]
        cost = f"{step['over_plain']:.2f} ({step['low']:.2f} to {step['high']:.2f})"
        if peer == NULL:
            text += line(["plain again (the noise)", *[""] * len(VERDICTS), cost, ""])
            continue
        count = Counter(found[task, peer]["verdict"] for task in tasks)
        text += line([peer, *(str(count[verdict] or "") for verdict in VERDICTS), cost, peers[peer].by_hand])
    text += "\n" + line(["", *peers]) + line(["---"] * (len(peers) + 1))
    for task, plan in tasks.items():
        text += line([f"{task}: {plan.about}", *(cell(found[task, peer]) for peer in peers)])
    step = found["step time", NULL]
    world = step["world"]
    plain = found["step time", "plain"]["median_s"]
    text += (
        f"\nTaken on {world['date'][:10]}: torch {world['torch']}, Python {world['python']}, {world['cpu']}, "
        f"{world['threads']} thread; a plain step takes {1e3 * plain:.0f} ms, {step['rounds']} rounds.\n"
    )
    return text


def split(page: str) -> tuple[str, str, str]:
    """What stands before the tables, the tables, what comes after."""
    before, begin, rest = page.partition(BEGIN)
    middle, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{PAGE.name} has no lines {BEGIN.strip()!r} and {END.strip()!r}; put them where the tables go"
        )
    return before, middle, after


def write(tasks: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    """Put the tables of the newest rows into the page; returns its name."""
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + BEGIN + tables(newest(), tasks, peers) + END + after)
    return PAGE.name
