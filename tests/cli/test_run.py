"""``nanscan run``: what it reports, and its own exit codes."""

from __future__ import annotations

import pytest

TRAIN = """
import sys, torch
from torch import nn

class Bad(nn.Module):
    def forward(self, x):
        return torch.sqrt(x - x - 1) if sys.argv[1] == "bad" else x

model = nn.Sequential(nn.Linear(4, 4), Bad(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("health", "own", "options", "code"),
    [
        pytest.param("good", 0, ["--error-exitcode", "3"], 0, id="healthy"),
        pytest.param("bad", 0, ["--error-exitcode", "3"], 3, id="error"),
        pytest.param("bad", 5, ["--error-exitcode", "3"], 5, id="the-script's-own-code-wins"),
        pytest.param("bad", 0, [], 0, id="not-asked-for"),
    ],
)
def test_error_exitcode(nanscan, write, health: str, own: int, options: list[str], code: int) -> None:
    write("train.py", TRAIN)
    done = nanscan("run", "--on-anomaly", "record", *options, "train.py", health, str(own))
    assert done.returncode == code
    assert done.stdout == ""
    assert ("FIRST NON-FINITE" in done.stderr) == (health == "bad")
    assert ("healthy" in done.stderr) == (health == "good")


def test_the_module_is_named_without_naming_the_model(nanscan, write) -> None:
    write("train.py", TRAIN)
    done = nanscan("run", "train.py", "bad", "0")
    where = next(line for line in done.stderr.splitlines() if line.strip().startswith("where"))
    assert where.split()[1:3] == ["1", "Bad"]
    assert "step 0" in done.stderr


def test_stop_ends_the_script_with_its_own_traceback(nanscan, write) -> None:
    write("train.py", TRAIN)
    done = nanscan("run", "--on-anomaly", "raise", "train.py", "bad", "0")
    assert done.returncode == 1
    assert "NonFiniteError" in done.stderr
    assert "FIRST NON-FINITE" in done.stderr


def test_the_log_can_be_read_afterwards(nanscan, write) -> None:
    write("train.py", TRAIN)
    nanscan("run", "--dir", "log", "train.py", "bad", "0")
    done = nanscan("report", "log")
    assert done.returncode == 0
    assert "FIRST NON-FINITE" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param([], 2, "nothing to run", id="nothing"),
        pytest.param(["-m"], 2, "nothing to run", id="no-module"),
        pytest.param(["gone.py"], 2, "no file 'gone.py'", id="no-such-file"),
        pytest.param(["-m", "gone.mod"], 1, "no module named 'gone.mod'", id="no-such-module"),
        pytest.param(["--level", "line", "a.py"], 2, "level='line' is unknown", id="level"),
        pytest.param(["--on-anomaly", "shout", "a.py"], 2, "on_anomaly='shout' is unknown", id="policy"),
        pytest.param(["--every", "0", "a.py"], 2, "every=0 is below 1", id="every"),
        pytest.param(["--every", "two", "a.py"], 2, "invalid int value: 'two'", id="not-a-number"),
        pytest.param(["--dir", "a.py/log", "a.py"], 2, "dir='a.py/log' cannot be written", id="dir"),
        pytest.param(["--colour", "red", "a.py"], 2, "--colour", id="unknown-option"),
    ],
)
def test_a_wrong_call_is_explained_in_one_line(nanscan, write, words: list[str], code: int, says: str) -> None:
    write("a.py", "print('ran')")
    done = nanscan("run", *words)
    assert done.returncode == code
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
