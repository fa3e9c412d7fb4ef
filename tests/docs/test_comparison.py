"""docs/comparison.md shows what the rows say, the rows are whole, and a cell that is run again comes out the same."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from nanscan.backends import get

needs_core = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def compare() -> Iterator[ModuleType]:
    """benchmarks/compare_peers.py, which finds its neighbours on sys.path; that is put back afterwards."""
    pytest.importorskip("torch.utils._debug_mode")  # a private name of torch
    path, threads = list(sys.path), torch.get_num_threads()
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("compare_peers")
    finally:
        sys.path[:] = path
        torch.set_num_threads(threads)


def test_the_tables_are_what_the_rows_say(compare: ModuleType) -> None:
    page = compare.peers_page
    _, shown, _ = page.split(page.PAGE.read_text())
    made = page.tables(page.newest(), compare.TASKS, compare.PEERS)
    assert shown.splitlines() == made.splitlines(), "run: python benchmarks/compare_peers.py --markdown"


def test_every_task_and_peer_has_a_row(compare: ModuleType) -> None:
    found = compare.peers_page.newest()
    assert {(task, peer) for task in compare.TASKS for peer in compare.PEERS} - found.keys() == set()
    assert {("step time", peer) for peer in ("plain", "plain again", *compare.PEERS)} - found.keys() == set()
    assert {row["verdict"] for row in found.values() if "verdict" in row} <= set(compare.peers_page.VERDICTS)


def test_every_program_is_compared(compare: ModuleType) -> None:
    builders = {name for name in vars(compare.programs()) if re.fullmatch(r"t\d+[a-z]?", name)}
    assert {plan.builder for plan in compare.TASKS.values()} == builders


def test_rows_name_no_folder(compare: ModuleType) -> None:
    text = (BENCHMARKS / "results" / "compare_peers.jsonl").read_text()
    assert [line for line in text.splitlines() if re.search(r'[" ]/\w', line)] == []


@needs_core
@pytest.mark.parametrize("task", ["T1", "T3a", "T4"])
def test_a_cell_of_the_op_level_comes_out_as_its_row(compare: ModuleType, task: str) -> None:
    row, again = compare.peers_page.newest()[task, "nanscan, op level"], compare.cell(task, "nanscan, op level")
    assert (row["verdict"], row["named"], row["said"]) == (again["verdict"], again["named"], again["said"])


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("T1", {}, "right"),
        ("T1", {"op": None, "line": None}, "partly"),
        ("T1", {"op": "aten::gelu"}, "partly"),
        ("T1", {"op": "aten::gelu", "line": 1, "module": "l4"}, "wrong"),
        ("T1", {"phase": "backward"}, "wrong"),
        ("T1", {"external": True}, "wrong"),
        ("T6b", {}, "right"),
        ("T6b", {"external": False}, "wrong"),
        ("T6b", {"external": False, "module": "raw"}, "partly"),
        ("T8", {}, "false alarm"),
    ],
)
def test_the_rule(compare: ModuleType, name: str, change: dict, verdict: str) -> None:
    # GIVEN the right answer for T1, or for T6b, with some of it changed
    if name == "T6b":
        line = compare.marked_line("Join", "# first reader")
        best = compare.Finding("forward", "aten::add", "join", line, external=True)
    else:
        best = compare.Finding("forward", "aten::exp", "", compare.marked_line("MLP", "# ORIGIN"))
    # WHEN it is judged
    plan = compare.TASKS[name]
    task = getattr(compare.programs(), plan.builder)()
    # THEN the rule says what the page says it says
    assert compare.judge(plan, task, replace(best, **change))[0] == verdict


class LogOfZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x + self.weight) * 0


@pytest.mark.parametrize(
    ("peer", "op"),
    [
        ("DebugMode, its hashes", "aten::log"),
        ("DebugMode, own hooks", "aten::mul"),
        pytest.param("nanscan, op level", "aten::log", marks=needs_core),
    ],
)
def test_what_the_page_says_of_a_wrong_minus_inf(compare: ModuleType, peer: str, op: str) -> None:
    model = LogOfZero()
    watch = compare.PEERS[peer](model, __file__)
    found = watch.step(lambda: model(torch.tensor([0.0, 1.0, 2.0])).sum().backward())
    last = watch.close()
    assert (found or last).op == op


@pytest.mark.parametrize(
    ("told", "verdict"), [(None, "silent"), (24, "false alarm"), (25, "right"), (56, "right"), (57, "partly")]
)
def test_the_rule_in_time(compare: ModuleType, told: int | None, verdict: str) -> None:
    assert compare.judge_in_time(25, 57, told) == verdict
