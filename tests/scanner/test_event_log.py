"""dir=...: one JSON Lines file per process, read back as the same report."""

from __future__ import annotations

import json
import os

import pytest
import torch

import nanscan
from nanscan.cli.main import main
from nanscan.events.read import read_dir
from nanscan.report import Report, report_lines


def lines_of(folder):
    (path,) = folder.iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_start_event_end(training, tmp_path):
    scanner = nanscan.enable(training.net, on_anomaly="record", dir=tmp_path)
    training.run(4, at={2: "forward"})
    scanner.close()
    start, event, end = lines_of(tmp_path)
    assert [line["kind"] for line in (start, event, end)] == ["start", "event", "end"]
    assert start["schema"] == 1
    facts = start["data"]
    assert (facts["model"], facts["n_modules"], facts["n_params"], facts["level"]) == ("Net", 4, 4, "module")
    assert facts["torch"] == torch.__version__
    assert facts["nanscan"] == nanscan.__version__
    assert facts["pid"] == os.getpid()
    assert event["data"]["module"] == "trap"
    assert event["data"]["stats"]["mean"] == "nan", "JSON has no NaN"
    assert nanscan.Event.from_dict(event["data"]).to_dict() == scanner.first.to_dict()
    assert (end["data"]["steps"], end["data"]["batches"], end["data"]["errors"]) == (4, 4, 1)


def test_an_event_is_on_disk_before_the_program_goes_on(make_net, tmp_path):
    net = make_net()
    nanscan.enable(net, on_anomaly="raise", dir=tmp_path)
    net.trap.bad = "forward"
    with pytest.raises(nanscan.NonFiniteError):
        net(torch.ones(1, 4))
    assert [line["kind"] for line in lines_of(tmp_path)] == ["start", "event"]


def test_a_healthy_run(training, tmp_path):
    with nanscan.enable(training.net, dir=tmp_path):
        training.run(3)
    assert [line["kind"] for line in lines_of(tmp_path)] == ["start", "end"]


def test_the_folder_is_made_as_needed(training, tmp_path):
    with nanscan.enable(training.net, dir=str(tmp_path / "a" / "b")):
        training.run(1)
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


def test_two_scanners_have_a_file_each(make_net, tmp_path):
    for _ in range(2):
        with nanscan.enable(make_net(), dir=tmp_path):
            pass
    assert len(list(tmp_path.iterdir())) == 2


def test_the_reader_tells_what_the_scanner_told(training, tmp_path):
    scanner = nanscan.enable(training.net, on_anomaly="record", dir=tmp_path)
    training.run(6, at={2: "forward", 4: "backward"})
    scanner.close()
    report = Report.from_logs(read_dir(tmp_path))
    assert report.first.to_dict() == scanner.first.to_dict()
    # "before" is the scanner's own history, which a log does not carry
    wanted = [line for line in scanner.report().splitlines() if not line.startswith("  before")]
    assert [line for line in report_lines(report) if not line.startswith("  before")] == wanted


def test_the_command_reads_it(training, tmp_path, capsys):
    with nanscan.enable(training.net, on_anomaly="record", dir=tmp_path):
        training.run(3, at={1: "forward"})
    main(["report", str(tmp_path)])
    out = capsys.readouterr().out
    assert "FIRST NON-FINITE  step 1" in out
    assert "trap" in out


def test_a_healthy_log_reads_as_healthy(training, tmp_path):
    with nanscan.enable(training.net, dir=tmp_path) as scanner:
        training.run(3)
    assert report_lines(Report.from_logs(read_dir(tmp_path)))[0] == scanner.report().splitlines()[0]


def test_repeats_are_logged_at_powers_of_ten(make_net, tmp_path):
    net = make_net()
    with nanscan.enable(net, on_anomaly="record", dir=tmp_path), torch.no_grad():
        for _ in range(120):
            net(torch.full((1, 4), float("nan")))
    counts = [line["data"]["count"] for line in lines_of(tmp_path) if line["kind"] == "event"]
    assert counts == [1, 10, 100]


PROGRAM = """
    with nanscan.enable(net, on_anomaly="record", dir="log"):
        for i in range(3):
            step(bad=i == 1)
"""

NAMES = [
    pytest.param({}, "nanscan-pid{pid}.jsonl", id="alone"),
    pytest.param({"RANK": "3", "WORLD_SIZE": "8"}, "nanscan-rank3-restart0-pid{pid}.jsonl", id="a-rank"),
    pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "nanscan-rank0-restart0-pid{pid}.jsonl", id="one-rank"),
    pytest.param(
        {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "4"},
        "nanscan-rank1-restart4-pid{pid}.jsonl",
        id="restarted",
    ),
]


@pytest.mark.parametrize(("environment", "name"), NAMES)
def test_rank_and_restart_are_in_the_name(training, monkeypatch, tmp_path, environment, name):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with nanscan.enable(training.net, on_anomaly="record", dir=tmp_path):
        training.run(3, at={1: "forward"})
    (path,) = tmp_path.iterdir()
    assert path.name == name.format(pid=os.getpid())
    (log,) = read_dir(tmp_path)
    assert log.first.rank == int(environment.get("RANK", 0))
    assert log.end["steps"] == 3


def test_several_ranks_are_one_report(run_program, tmp_path):
    for rank in range(2):
        run_program(PROGRAM.replace("i == 1", f"i == {2 - rank}"), RANK=str(rank), WORLD_SIZE="2")
    report = Report.from_logs(read_dir(tmp_path / "log"))
    assert (report.first.rank, report.first.step) == (1, 1)
    assert "rank 1/2" in report_lines(report)[0]


def test_a_program_that_never_closes_still_ends_its_log(run_program, tmp_path):
    # GIVEN the two lines of the README: enable, then train until the program is over, its last step bad
    run_program("""
    scanner = nanscan.enable(net, on_anomaly="record", dir="log")
    for i in range(3):
        step()
    net[0].weight.register_hook(lambda grad: grad * float("nan"))
    net(torch.ones(3, 4)).sum().backward()
    """)
    assert [line["kind"] for line in lines_of(tmp_path / "log")] == ["start", "event", "end"]


def test_a_killed_program_leaves_a_readable_log(run_program, tmp_path):
    run_program(
        """
    import signal
    scanner = nanscan.enable(net, on_anomaly="record", dir="log")
    step(bad=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """,
        expect=-9,
    )
    report = Report.from_logs(read_dir(tmp_path / "log"))
    assert report.first.module == "1"
    assert report.unfinished == [0]


def test_a_disk_that_is_full_stops_nothing_and_is_said(run_program):
    # GIVEN a limit on the size of files that is reached in the middle of the event's line
    done = run_program("""
    import resource
    scanner = nanscan.enable(net, on_anomaly="record", dir="log")
    size = os.path.getsize(os.path.join("log", os.listdir("log")[0]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    for i in range(3):
        step(bad=i == 1)
    scanner.close()
    print(scanner.coverage["failure"], scanner.first.module)
    print(scanner.coverage["notes"], scanner.report())
    """)
    assert done.stdout.startswith("None 1\n")
    assert "log" in done.stdout.splitlines()[1], "nobody is told that the log is not whole"
