"""``nanscan doctor`` proves itself where things work, and never raises where they do not."""

from __future__ import annotations

import json


def test_finds_the_planted_nan(nanscan) -> None:
    done = nanscan("doctor")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("nanscan ")
    assert any(line.startswith("[ok]   self-test") and "module '2'" in line for line in lines)
    assert any(line.startswith("[ok]   GPU") and "would be read by" in line for line in lines)
    assert lines[-1] == "usable"
    assert done.stderr == ""


def test_json_says_the_same(nanscan) -> None:
    done = nanscan("doctor", "--json")
    told = json.loads(done.stdout)
    assert told["usable"] is True
    assert {check["status"] for check in told["checks"]} <= {"ok", "warn", "skip"}
    assert [check["name"] for check in told["checks"]][-1] == "self-test"


def test_plain_pytorch_is_usable(nanscan) -> None:
    done = nanscan("doctor", env={"NANSCAN_BACKEND": "eager"})
    assert done.returncode == 0, done.stdout
    assert "[warn] core" in done.stdout
    assert "[ok]   self-test" in done.stdout


def test_a_wrong_variable_is_a_finding(nanscan) -> None:
    done = nanscan("doctor", env={"NANSCAN_EVERY": "banana"})
    assert done.returncode == 1
    assert "[fail] settings" in done.stdout
    assert "NANSCAN_EVERY='banana'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_switched_off_is_a_finding(nanscan) -> None:
    done = nanscan("doctor", env={"NANSCAN": "0"})
    assert done.returncode == 0, done.stdout
    assert "[skip] self-test" in done.stdout


def test_without_torch_it_still_speaks(python) -> None:
    code = "import sys; sys.modules['torch'] = None; from nanscan.cli.main import main; sys.exit(main(['doctor']))"
    done = python("-c", code)
    assert done.returncode == 1
    assert "torch not importable" in done.stdout.splitlines()[0]
    assert "[fail] torch" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("NOT usable")
    assert done.stderr == ""
