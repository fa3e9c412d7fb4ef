"""Compiles the C++ programs beside the tests, without torch."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
CFLAGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}", "-pthread"]
SCAN = [CSRC / "scan" / name for name in ("scan_cpu.cpp", "scan_avx2.cpp", "layout.cpp")]


def _missing(why: str) -> None:
    if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1" and "sanitize" not in why:
        pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1: {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        _missing(f"no C++ compiler: {command[0]} is not on PATH; set CXX")
    return command


@pytest.fixture(scope="session")
def build(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """build(name, *flags, scan=False) -> program, from <name>.cpp here and, if asked, the torch-free kernels."""
    folder = tmp_path_factory.mktemp("native")

    def compile_it(name: str, *flags: str, scan: bool = False) -> Path:
        program = folder / "-".join([name, *(flag.strip("-").replace("=", "_").replace(",", "_") for flag in flags)])
        if program.exists():
            return program
        _need_sanitizer(compiler, folder, flags)
        sources = [HERE / f"{name}.cpp", *(SCAN if scan else [])]
        done = subprocess.run(
            [*compiler, *CFLAGS, *flags, *map(str, sources), "-o", str(program)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name}.cpp does not compile:\n{done.stderr[-4000:]}"
        return program

    return compile_it


def _need_sanitizer(compiler: list[str], folder: Path, flags: tuple[str, ...]) -> None:
    """Skip, aloud, where the sanitizer's run-time library is not installed or does not start."""
    sanitize = [flag for flag in flags if flag.startswith("-fsanitize=")]
    if not sanitize:
        return
    probe = folder / ("probe" + "".join(sanitize).replace("=", "_").replace(",", "_"))
    source = folder / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    done = subprocess.run([*compiler, *sanitize, str(source), "-o", str(probe)], capture_output=True, text=True)
    if done.returncode != 0:
        _missing(f"cannot link with {' '.join(sanitize)}: {done.stderr.strip().splitlines()[-1]}")
    if _run([str(probe)]).returncode != 0:
        _missing(f"a program with {' '.join(sanitize)} does not start here: {_run([str(probe)]).stderr[-300:]}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # ThreadSanitizer of older compilers cannot place its shadow memory where the kernel randomises much
    if "thread" in command[0] and shutil.which("setarch"):
        command = ["setarch", "-R", *command]
    environ = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    """Run a program; fails with the end of its stderr unless it exits with 0; returns what it printed."""

    def run_it(program: Path, *args: object) -> str:
        done = _run([str(program), *map(str, args)])
        assert done.returncode == 0, (
            f"{program.name} exited with {done.returncode}:\n{done.stdout}{done.stderr[-4000:]}"
        )
        return done.stdout

    return run_it
