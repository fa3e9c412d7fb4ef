"""nanscan.scan() of a tensor on a device, with the stand-in: it waits for a record that comes late."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nanscan import backends

PROGRAM = Path(__file__).with_name("scan_program.py")


@pytest.fixture(scope="module")
def program(build, folder: Path) -> Callable[..., list[str]]:
    """program(case, **environment) -> the lines that it printed; a device library is loaded once per process."""
    if backends.get().core is None:
        pytest.skip(backends.get().why)
    library = build.late(folder)

    def run(case: str, **environment: str) -> list[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NANSCAN")}
        command = [sys.executable, PROGRAM, library, case]
        done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("case", ["values", "threads", "beside_a_scanner", "refusals"])
def test_scan_waits_for_its_record(program: Callable[..., list[str]], case: str) -> None:
    assert program(case) == []


def test_each_step_down_is_said_once(program: Callable[..., list[str]]) -> None:
    to_triton, to_pytorch = program("steps_down")
    assert to_triton == (
        "scan_program.py: NanscanWarning: nanscan.scan() reads GPU tensors with Triton, not with the CUDA library: "
        "it takes tensors of at most 16 dimensions"
    )
    assert to_pytorch.startswith(
        "scan_program.py: NanscanWarning: nanscan.scan() reads GPU tensors with plain PyTorch, which is much slower; "
        "Triton cannot be used: ModuleNotFoundError"
    )


def test_triton_by_name_is_triton_or_an_error(program: Callable[..., list[str]]) -> None:
    (error,) = program("triton_only", NANSCAN_BACKEND="triton")
    assert error.startswith("NANSCAN_BACKEND=triton, but Triton cannot be used: ModuleNotFoundError")
    assert error.endswith("Mend it, or unset the variable to take what is there")
