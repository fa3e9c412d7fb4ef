"""Where nanscan's words end and the script's begin."""

from __future__ import annotations

import pytest

from nanscan.cli.run import split


@pytest.mark.parametrize(
    ("line", "ours", "command"),
    [
        pytest.param("run a.py", "run", "a.py", id="script"),
        pytest.param("run a.py --level op -m x", "run", "a.py --level op -m x", id="the-script's-options"),
        pytest.param("run --every 2 a.py --every 3", "run --every 2", "a.py --every 3", id="both"),
        pytest.param("run --every=2 a.py", "run --every=2", "a.py", id="equals-sign"),
        pytest.param("run -m pkg.mod --lr 3", "run", "-m pkg.mod --lr 3", id="module"),
        pytest.param("run --dir d -m pkg -m", "run --dir d", "-m pkg -m", id="module-after-an-option"),
        pytest.param("run --dir d -- a.py -- b", "run --dir d", "a.py -- b", id="dashes"),
        pytest.param("run --help", "run --help", "", id="help"),
        pytest.param("run", "run", "", id="nothing"),
        pytest.param("run --every 2", "run --every 2", "", id="no-script"),
        pytest.param("report d --json", "report d --json", "", id="another-command"),
        pytest.param("", "", "", id="empty"),
    ],
)
def test_split(line: str, ours: str, command: str) -> None:
    assert split(line.split()) == (ours.split(), command.split())
