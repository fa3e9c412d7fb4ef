"""The event log: crash-safe, bounded, readable."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nanscan.errors import NanscanError
from nanscan.events import EventLog, read_dir
from nanscan.events.log import is_power_of_ten


def lines(log):
    return [json.loads(line) for part in sorted(log.dir.glob("*.jsonl")) for line in part.read_text().splitlines()]


def test_lines_are_on_disk_at_once(tmp_path, make_event):
    log = EventLog(tmp_path)
    assert log.write("start", {"torch": "2.13", "loss": float("nan")})
    assert log.event(make_event())
    start, event = lines(log)
    assert start["schema"] == 1
    assert start["kind"] == "start"
    assert start["data"]["loss"] == "nan"
    assert event["data"]["module"] == "blocks.2.attn"
    log.close()
    log.close()
    assert not log.write("end", {})


@pytest.mark.parametrize(
    ("rank", "restart", "name"),
    [
        (None, None, "nanscan-pid{pid}.jsonl"),
        (3, None, "nanscan-rank3-pid{pid}.jsonl"),
        (0, 2, "nanscan-rank0-restart2-pid{pid}.jsonl"),
    ],
)
def test_names(tmp_path, rank, restart, name):
    log = EventLog(tmp_path / "deep" / "er", rank, restart)
    assert log.path.name == name.format(pid=os.getpid())
    (run,) = read_dir(log.dir)
    assert (run.rank, run.restart, run.pid) == (rank, restart, os.getpid())


def test_a_second_log_of_one_process_gets_its_own_file(tmp_path):
    first, second = EventLog(tmp_path), EventLog(tmp_path)
    first.write("start", {"n": 1})
    second.write("start", {"n": 2})
    assert sorted(run.start["n"] for run in read_dir(tmp_path)) == [1, 2]


def test_repeats_are_written_at_powers_of_ten(tmp_path, make_event):
    log = EventLog(tmp_path)
    written = [n for n in range(1, 1001) if log.event(make_event(step=n))]
    assert written == [1, 10, 100, 1000]
    assert log.event(make_event(module="other"))
    (run,) = read_dir(tmp_path)
    assert run.hits[make_event().key] == 1000
    assert [n for n in range(1, 200) if is_power_of_ten(n)] == [1, 10, 100]


def test_rotation_bounds_the_total_and_keeps_the_first_part(tmp_path):
    log = EventLog(tmp_path, max_bytes=2048, keep=3)
    log.write("start", {"model": "Net"})
    for n in range(2000):
        assert log.write("note", {"n": n, "pad": "x" * 50})
    parts = list(tmp_path.iterdir())
    assert len(parts) == 3
    assert all(part.stat().st_size <= 2048 for part in parts)
    (run,) = read_dir(tmp_path)
    assert run.start == {"model": "Net"}
    assert run.problems == []
    assert any(line["data"].get("n") == 1999 for line in lines(log))


def test_a_torn_line_costs_that_line_only(tmp_path, make_event):
    log = EventLog(tmp_path)
    log.write("start", {"a": 1})
    log.event(make_event())
    with log.path.open("ab") as file:
        file.write(b'{"schema":1,"kind":"event","da')
    (run,) = read_dir(tmp_path)
    assert run.start == {"a": 1}
    assert len(run.events) == 1
    assert len(run.problems) == 1
    assert "torn" in run.problems[0]
    assert run.end is None


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\n", b"[]\n", b"3\n", b'{"schema":1}\n', b"\n\n", b'{"schema":"x","kind":1}\n']
)
def test_foreign_lines_never_stop_the_reader(tmp_path, junk):
    log = EventLog(tmp_path)
    log.path.write_bytes(junk)
    log.write("end", {"steps": 3})
    (run,) = read_dir(tmp_path)
    assert run.end == {"steps": 3}


def test_a_newer_schema_is_read_as_far_as_it_is_known(tmp_path):
    log = EventLog(tmp_path)
    log.path.write_text('{"schema":9,"kind":"start","time":1.0,"data":{"torch":"3"}}\n')
    (run,) = read_dir(tmp_path)
    assert run.start == {"torch": "3"}
    assert "schema 9 is newer than 1" in run.problems[0]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "events.jsonl").write_text("{}")
    (tmp_path / "nanscan-notes.txt").write_text("{}")
    assert read_dir(tmp_path) == []


def test_the_earliest_error_is_first(tmp_path, make_event):
    log = EventLog(tmp_path)
    log.event(make_event(severity="warning", step=1, module="w"))
    assert read_dir(tmp_path)[0].first.module == "w"
    log.event(make_event(step=9, module="late"))
    log.event(make_event(step=5, module="early"))
    assert read_dir(tmp_path)[0].first.module == "early"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        NanscanError, match=r"dir='.*file.*': cannot write an event log there .*; give a writable folder"
    ):
        EventLog(tmp_path / "file" / "below")


def test_limits_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"max_bytes=10, keep=1"):
        EventLog(tmp_path, max_bytes=10, keep=1)


def test_a_full_disk_is_remembered_not_raised(tmp_path, monkeypatch):
    log = EventLog(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert not log.write("note", {})
    assert "No space left" in log.error


def test_a_half_written_line_does_not_spoil_the_next(tmp_path, monkeypatch):
    log, write = EventLog(tmp_path), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        assert not log.write("note", {})
    assert log.write("end", {"steps": 1})
    (run,) = read_dir(tmp_path)
    assert run.end == {"steps": 1}


def test_a_forked_child_writes_nothing(tmp_path):
    log = EventLog(tmp_path)
    pid = os.fork()
    if pid == 0:
        os._exit(int(log.write("note", {})))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lines(log) == []


def test_no_torch():
    code = (
        "import sys, nanscan.events, nanscan.origin, nanscan.report, nanscan.cli.report\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
