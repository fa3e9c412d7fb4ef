"""A run read back from its logs, and the command that shows it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from nanscan.cli import report as command
from nanscan.events import EventLog, read_dir
from nanscan.report import Report, report_lines, to_json


def write_rank(dir, rank, events, end=True, restart=None):
    log = EventLog(dir, rank, restart)
    log.write("start", {"world_size": 2, "n_modules": 29, "n_params": 31, "level": "module"})
    for event in events:
        log.event(event)
    if end:
        log.write("end", {"steps": 100, "skips": 1, "after": {"outputs": 2, "later_steps": 9}})
    log.close()


@pytest.fixture
def two_ranks(tmp_path, make_event):
    write_rank(tmp_path, 0, [make_event(step=9, time=1.0, rank=0, module="late")])
    write_rank(tmp_path, 1, [make_event(step=7, time=3.0, rank=1, module="early")], end=False)
    return tmp_path


def run(*argv):
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    command.add_parser(subparsers)
    return command.run(parser.parse_args(["report", *map(str, argv)]))


def test_the_earliest_step_over_all_ranks_is_first(two_ranks):
    report = Report.from_logs(read_dir(two_ranks))
    assert report.first.module == "early"
    assert report.unfinished == [1]
    assert report.counts == {"error": 2}
    assert report_lines(report)[0] == "nanscan: FIRST NON-FINITE  step 7  batch 1843  rank 1/2  forward"


def test_at_the_same_step_the_earlier_time_is_first(tmp_path, make_event):
    write_rank(tmp_path, 0, [make_event(step=7, time=3.0)])
    write_rank(tmp_path, 1, [make_event(step=7, time=2.0, rank=1)])
    assert Report.from_logs(read_dir(tmp_path)).first.rank == 1


def test_an_error_comes_before_an_earlier_warning(tmp_path, make_event):
    write_rank(tmp_path, 0, [make_event(severity="warning", step=1)])
    write_rank(tmp_path, 1, [make_event(step=7, rank=1)])
    assert Report.from_logs(read_dir(tmp_path)).first.rank == 1


def test_the_warning_before_the_error_is_shown(tmp_path, make_event):
    growth = make_event(severity="warning", kind="explosion", step=5, rank=1, evidence=("gradients grew",), stats=None)
    write_rank(tmp_path, 0, [])
    write_rank(tmp_path, 1, [growth, make_event(step=7, rank=1)])
    report = Report.from_logs(read_dir(tmp_path))
    assert "  warned  step 5: gradients grew" in report_lines(report)
    assert to_json(report)["warned"]["step"] == 5


def test_a_later_run_in_the_same_folder_replaces_the_earlier(tmp_path, make_event):
    write_rank(tmp_path, None, [make_event()])
    write_rank(tmp_path, None, [])
    report = Report.from_logs(read_dir(tmp_path))
    assert report.first is None
    assert report.older == 1


def test_a_restarted_rank_keeps_its_first_life(tmp_path, make_event):
    write_rank(tmp_path, 0, [make_event(step=50, module="first life")], restart=0)
    write_rank(tmp_path, 0, [make_event(step=40, module="second life")], restart=1)
    assert Report.from_logs(read_dir(tmp_path)).first.module == "first life"


def test_healthy(tmp_path):
    write_rank(tmp_path, 0, [])
    assert report_lines(Report.from_logs(read_dir(tmp_path)))[0] == (
        "nanscan: healthy. 100 steps x 2 ranks, 0 anomalies, 1 loss-scale skip (expected)."
    )


def test_json(two_ranks, capsys):
    assert run(two_ranks, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["healthy"] is False
    assert data["first"]["module"] == "early"
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
    assert data == json.loads(json.dumps(to_json(Report.from_logs(read_dir(two_ranks)))))


def test_the_command_prints_block_table_and_notes(two_ranks, capsys):
    assert run(two_ranks) == 0
    out = capsys.readouterr().out
    assert out.startswith("nanscan: FIRST NON-FINITE  step 7")
    assert "first anomaly per rank" in out
    assert "late (Attention)" in out
    assert "nanscan: note: rank 1 wrote no end line: still running, or it died" in out


def test_one_rank(two_ranks, capsys):
    assert run(two_ranks, "--rank", 0) == 0
    out = capsys.readouterr().out
    assert "late" in out
    assert "early" not in out


@pytest.mark.parametrize("brackets", ["[bold]x", "[/]"])
def test_names_are_not_markup(tmp_path, make_event, capsys, brackets):
    write_rank(tmp_path, 0, [make_event(module=brackets)])
    write_rank(tmp_path, 1, [])
    assert run(tmp_path) == 0
    assert capsys.readouterr().out.count(brackets) >= 2


def test_refusals(tmp_path, two_ranks):
    with pytest.raises(ValueError, match=r"DIR='.*missing' does not exist; give the folder that was passed as dir="):
        run(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"DIR='.*empty' holds no nanscan log .*; run with nanscan.enable\(model, dir=...\)"
    ):
        run(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"DIR='.*file' is a file"):
        run(tmp_path / "file")
    with pytest.raises(ValueError, match=r"--rank 5: no such rank in .*; found 0, 1"):
        run(two_ranks, "--rank", 5)


def test_no_torch(two_ranks):
    code = (
        "import argparse, sys; from nanscan.cli import report\n"
        "parser = argparse.ArgumentParser(); report.add_parser(parser.add_subparsers())\n"
        "assert report.run(parser.parse_args(['report', sys.argv[1]])) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(two_ranks)], check=True, capture_output=True)
