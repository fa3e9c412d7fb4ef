"""The run-time variables: what a program does not say, the environment decides. Read afresh at each enable()."""

from __future__ import annotations

import json
import re

import pytest
import torch

import nanscan

TRAIN = """
    scanner = nanscan.enable(net)
    for i in range(4):
        step(bad=i == 1)
    scanner.flush()
"""


def test_on_anomaly_in_a_program(run_program):
    done = run_program(TRAIN, NANSCAN_ON_ANOMALY="raise", expect=1)
    assert "nanscan.errors.NonFiniteError: nanscan: FIRST NON-FINITE  step 1" in done.stderr


def test_the_default_warns_at_the_line_of_the_program(run_program, tmp_path):
    done = run_program(TRAIN)
    lines = (tmp_path / "program.py").read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "net(torch.ones(3, 4))" in line)
    where = f"{tmp_path / 'program.py'}:{number}"
    assert done.stderr.startswith(f"{where}: NonFiniteWarning: error: nan (origin) in forward")
    assert done.stderr.count("NonFiniteWarning") == 1


@pytest.mark.parametrize("policy", ["record", "raise"])
def test_on_anomaly(training, monkeypatch, policy):
    monkeypatch.setenv("NANSCAN_ON_ANOMALY", policy)
    scanner = nanscan.enable(training.net)
    assert scanner.options.on_anomaly == policy


def test_an_argument_wins_over_the_environment(training, monkeypatch, tmp_path):
    monkeypatch.setenv("NANSCAN_ON_ANOMALY", "raise")
    monkeypatch.setenv("NANSCAN_EVERY", "7")
    monkeypatch.setenv("NANSCAN_DIR", str(tmp_path / "environment"))
    with nanscan.enable(training.net, on_anomaly="record", every=1, dir=tmp_path / "argument") as scanner:
        training.run(3, at={1: "forward"})
    assert scanner.first.step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["argument"]


def test_every(make_training, make_net, monkeypatch):
    scans = []
    for every in ("1", "4"):
        monkeypatch.setenv("NANSCAN_EVERY", every)
        training = make_training(make_net())
        scanner = nanscan.enable(training.net)
        training.run(8)
        scans.append(scanner.stats["scans"])
    assert 0 < scans[1] < scans[0] / 2


def test_dir(training, monkeypatch, tmp_path):
    monkeypatch.setenv("NANSCAN_DIR", str(tmp_path / "log"))
    with nanscan.enable(training.net, on_anomaly="record"):
        training.run(3, at={1: "forward"})
    (path,) = (tmp_path / "log").iterdir()
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["start", "event", "end"]


@pytest.mark.parametrize("value", ["", "module"])
def test_level(training, monkeypatch, value):
    monkeypatch.setenv("NANSCAN", value)
    assert nanscan.enable(training.net).coverage["level"] == "module"


OFF = """
    scanner = nanscan.enable(net, on_anomaly="raise", dir="log")
    for i in range(3):
        step(bad=True)
        nanscan.check(torch.tensor(float("nan")), "loss")
    print(scanner.report())
    print("nanscan._C" in sys.modules)
"""


def test_off_needs_no_compiled_core(run_program, tmp_path):
    # GIVEN a machine where nothing can be compiled
    done = run_program(OFF, NANSCAN="0", NANSCAN_CACHE_DIR=str(tmp_path / "none"), NANSCAN_BUILD="none")
    assert done.stderr == ""
    first, second, loaded = done.stdout.splitlines()
    assert first == "nanscan: off (NANSCAN=0)."
    assert "unset NANSCAN" in second
    assert loaded == "False"
    assert not (tmp_path / "log").exists() or list((tmp_path / "log").iterdir()) == []


@pytest.fixture
def off(training, monkeypatch):
    monkeypatch.setenv("NANSCAN", "0")
    return nanscan.enable(training.net, on_anomaly="raise")


def test_off_is_inert(off, training, hooks_of):
    assert hooks_of(training.net) == []
    with off:
        training.run(3, at={1: "forward"})
        nanscan.check(torch.tensor(float("nan")), "loss")
        off.step()
        off.poll()
        off.flush()
        assert off.events == ()
        assert off.first is None
        assert off.stats["steps"] == 0
        assert off.coverage["modules"] == {}
        assert not off.closed
    assert off.closed


def test_off_and_closed_is_like_any_closed_scanner(off):
    off.close()
    nanscan.disable()
    for call in (off.close, off.step):
        with pytest.raises(nanscan.NanscanError, match="already closed"):
            call()


def test_off_still_checks_the_arguments(training, monkeypatch):
    monkeypatch.setenv("NANSCAN", "0")
    with pytest.raises(ValueError, match="every=-1"):
        nanscan.enable(training.net, every=-1)
    with pytest.raises(TypeError, match="model="):
        nanscan.enable("model")


def test_scan_works_while_off(monkeypatch):
    monkeypatch.setenv("NANSCAN", "0")
    assert nanscan.scan(torch.tensor([1.0, float("nan")])).nan == 1


ROWS = [
    pytest.param({"NANSCAN": "on"}, ("NANSCAN='on'", "0, module"), id="unknown-level"),
    pytest.param({"NANSCAN_ON_ANOMALY": "die"}, ("NANSCAN_ON_ANOMALY='die'", "warn, raise"), id="policy"),
    pytest.param({"NANSCAN_EVERY": "0"}, ("NANSCAN_EVERY='0'", "at least 1", "unset"), id="every"),
    pytest.param({"NANSCAN_EVERY": "often"}, ("NANSCAN_EVERY='often'", "at least 1"), id="every-a-word"),
    pytest.param({"NANSCAN_DIR": f"{__file__}/log"}, (f"{__file__}/log", "cannot be written"), id="dir"),
    pytest.param({"NANSCAN_BACKEND": "cuda"}, ("NANSCAN_BACKEND='cuda'", "triton, eager"), id="unknown-backend"),
    pytest.param({"RANK": "first"}, ("RANK='first'", "whole number"), id="rank"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "words"), ROWS)
def test_a_wrong_value_is_named(training, monkeypatch, hooks_of, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        nanscan.enable(training.net)
    assert hooks_of(training.net) == []


def test_a_wrong_dir_names_the_variable(training, monkeypatch):
    # GIVEN a user who has written no dir= anywhere
    monkeypatch.setenv("NANSCAN_DIR", f"{__file__}/log")
    with pytest.raises(ValueError, match="NANSCAN_DIR"):
        nanscan.enable(training.net)


def test_plain_pytorch_does_the_same(run_program):
    # GIVEN the last resort instead of the compiled core
    program = TRAIN + "\n    print(scanner.first, scanner.stats['steps'], scanner.stats['records'])"
    program = program.replace("enable(net", "enable(net, escalate=False")  # op level needs the core
    environment = {"NANSCAN_ON_ANOMALY": "record", "NANSCAN_REQUIRE_NATIVE": ""}
    native = run_program(program, **environment)
    plain = run_program(program, **environment, NANSCAN_BACKEND="eager")
    assert plain.stdout == native.stdout
    assert "nan (origin) in forward, step 1: 1 (Trap)" in native.stdout
