"""The run-time variables, in processes of their own: what a program does not say, the environment decides."""

from __future__ import annotations

import json

import pytest

TRAIN = """
    scanner = nanscan.enable(net)
    for i in range(4):
        step(bad=i == 1)
    scanner.flush()
"""


def test_on_anomaly(run_program):
    done = run_program(TRAIN, NANSCAN_ON_ANOMALY="raise", expect=1)
    assert "nanscan.errors.NonFiniteError: nanscan: FIRST NON-FINITE  step 1" in done.stderr
    silent = run_program(TRAIN, NANSCAN_ON_ANOMALY="record")
    assert silent.stderr == ""


def test_the_default_warns_at_the_line_of_the_program(run_program, tmp_path):
    done = run_program(TRAIN)
    lines = (tmp_path / "program.py").read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "net(torch.ones(3, 4))" in line)
    assert done.stderr.startswith(f"{tmp_path / 'program.py'}:{number}: NonFiniteWarning: error: nan (origin) in forward")
    assert done.stderr.count("NonFiniteWarning") == 1


def test_an_argument_wins_over_the_environment(run_program):
    program = TRAIN.replace("enable(net)", "enable(net, on_anomaly='record')")
    assert run_program(program, NANSCAN_ON_ANOMALY="raise").stderr == ""


def test_every(run_program):
    program = TRAIN + "\n    print(scanner.stats['scans'])"
    scans = [int(run_program(program, NANSCAN_EVERY=n, NANSCAN_ON_ANOMALY="record").stdout) for n in ("1", "4")]
    assert 0 < scans[1] < scans[0]


def test_dir(run_program, tmp_path):
    run_program(TRAIN + "\n    scanner.close()", NANSCAN_DIR=str(tmp_path / "log"), NANSCAN_ON_ANOMALY="record")
    (path,) = (tmp_path / "log").iterdir()
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["start", "event", "end"]


OFF = """
    from torch.nn.modules import module
    from torch.optim import optimizer as optim
    scanner = nanscan.enable(net, on_anomaly="raise", dir="log")
    with scanner:
        for i in range(3):
            step(bad=True)
            nanscan.check(torch.tensor(float("nan")), "loss")
            scanner.step()
        scanner.poll()
        scanner.flush()
    print(scanner.events, scanner.first, scanner.closed, scanner.stats, scanner.coverage["modules"])
    print(scanner.report())
    print(net._forward_hooks, optim._global_optimizer_pre_hooks, module._global_forward_pre_hooks)
    nanscan.disable()
    try:
        scanner.close()
    except nanscan.NanscanError as err:
        print(err)
"""


def test_off(run_program, tmp_path):
    out = run_program(OFF, NANSCAN="0").stdout.splitlines()
    assert out[0] == "() None True {'steps': 0, 'off': True} {}"
    assert out[1] == "nanscan: off (NANSCAN=0)."
    assert "unset NANSCAN" in out[2]
    assert out[3] == "OrderedDict() OrderedDict() OrderedDict()"
    assert out[4].startswith("close() on a scanner that is already closed")
    assert not (tmp_path / "log").exists() or list((tmp_path / "log").iterdir()) == []


def test_off_needs_no_compiled_core(run_program, tmp_path):
    # GIVEN a machine where nothing can be compiled
    program = """
        nanscan.enable(net)
        step(bad=True)
        print("nanscan._C" in sys.modules)
    """
    done = run_program(program, NANSCAN="0", NANSCAN_CACHE_DIR=str(tmp_path / "none"), NANSCAN_BUILD="none")
    assert done.stdout == "False\n"
    assert done.stderr == ""


def test_off_still_checks_the_arguments(run_program):
    done = run_program("nanscan.enable(net, every=-1)", NANSCAN="0", expect=1)
    assert "ValueError: every=-1" in done.stderr


ROWS = [
    pytest.param({"NANSCAN": "op"}, ("NANSCAN='op'", "not landed", "NANSCAN=module"), id="level-not-landed"),
    pytest.param({"NANSCAN": "on"}, ("NANSCAN='on'", "0, module"), id="unknown-level"),
    pytest.param({"NANSCAN_ON_ANOMALY": "die"}, ("NANSCAN_ON_ANOMALY='die'", "warn, raise"), id="policy"),
    pytest.param({"NANSCAN_EVERY": "0"}, ("NANSCAN_EVERY='0'", "at least 1", "unset"), id="every"),
    pytest.param({"NANSCAN_EVERY": "often"}, ("NANSCAN_EVERY='often'", "at least 1"), id="every-a-word"),
    pytest.param({"NANSCAN_DIR": "program.py/log"}, ("program.py/log", "cannot be written"), id="dir"),
    pytest.param({"NANSCAN_BACKEND": "triton"}, ("NANSCAN_BACKEND='triton'", "not landed"), id="backend"),
    pytest.param({"RANK": "first"}, ("RANK='first'", "whole number"), id="rank"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "words"), ROWS)
def test_a_wrong_value_is_named(run_program, environment, words):
    done = run_program("nanscan.enable(net)", expect=1, **environment)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: ")
    for word in words:
        assert word in last


def test_plain_pytorch_does_the_same(run_program):
    # GIVEN the last resort instead of the compiled core
    program = TRAIN + "\n    print(scanner.first, scanner.stats['steps'], scanner.stats['records'])"
    environment = {"NANSCAN_ON_ANOMALY": "record", "NANSCAN_REQUIRE_NATIVE": ""}
    native = run_program(program, **environment)
    plain = run_program(program, **environment, NANSCAN_BACKEND="eager")
    assert plain.stdout == native.stdout
    assert "nan (origin) in forward, step 1: 1 (Trap)" in native.stdout
