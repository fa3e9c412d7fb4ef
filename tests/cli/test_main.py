"""The command as a whole: help and version, and that they do not wait for torch."""

from __future__ import annotations

import pytest

from nanscan import __version__

# Any import of torch fails in this process.
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from nanscan.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--help"], "doctor", id="help"),
        pytest.param(["--version"], f"nanscan {__version__}", id="version"),
        pytest.param(["run", "--help"], "--error-exitcode", id="run"),
        pytest.param(["report", "--help"], "DIR", id="report"),
        pytest.param(["explain", "--help"], "RULE|CAUSE", id="explain"),
        pytest.param(["doctor", "--help"], "--json", id="doctor"),
        pytest.param(["demo", "--help"], "--mistake", id="demo"),
    ],
)
def test_help_needs_no_torch(python, words: list[str], says: str) -> None:
    done = python("-c", WITHOUT_TORCH, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_report_needs_no_torch(python, tmp_path) -> None:
    done = python("-c", WITHOUT_TORCH, "report", str(tmp_path / "gone"))
    assert done.returncode == 2
    assert "nanscan report: error: DIR=" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_command_is_a_usage_error(nanscan) -> None:
    done = nanscan()
    assert done.returncode == 2
    assert "usage: nanscan" in done.stderr
