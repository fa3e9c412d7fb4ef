"""What the GPU tests share: the CUDA source compiled by g++ and by nvcc, once per session; scripts and an oracle."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanscan import _build

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"


def _load(name: str) -> ModuleType:
    """A module of this folder, by its path: under importlib mode test folders are not importable by name."""
    spec = importlib.util.spec_from_file_location(f"nanscan_gpu_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """oracle.py: tensors, what a record has to say about them, and how it differs."""
    return _load("oracle")


@pytest.fixture(scope="session")
def script() -> ModuleType:
    """script.py: what a driver program is to do."""
    return _load("script")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """build.py; skips, aloud, where there is no C++ compiler that can make a program of the wanted kind."""
    module = _load("build")
    try:
        module.compiler()
    except module.MissingTool as err:
        if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1":
            pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1: {err}")
        pytest.skip(str(err))
    return module


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled things are kept."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="session")
def driver(build: ModuleType, folder: Path) -> Callable[[str], Path]:
    """driver(sanitizer) -> the script driver, compiled on first use: with every kernel, for tsan with a few."""
    made: dict[str, Path] = {}

    def make(sanitizer: str) -> Path:
        if sanitizer not in made:
            _need_sanitizer(build, folder, sanitizer)
            made[sanitizer] = build.driver(folder, sanitizer, elements=build.FEW if sanitizer == "tsan" else ())
        return made[sanitizer]

    return make


@pytest.fixture(scope="session")
def standin(build: ModuleType, folder: Path) -> Path:
    """The stand-in library: launches are queued until nanscan_standin_run or a flush runs them."""
    return build.standin(folder)


@pytest.fixture
def execute(driver, script, tmp_path: Path) -> Callable[..., object]:
    """execute(steps, sanitizer="plain") -> outcome; fails unless the program ended well and said nothing else."""

    def run(steps, sanitizer: str = "plain"):
        outcome = script.execute(driver(sanitizer), steps, tmp_path)
        assert outcome.code == 0, f"exited with {outcome.code}:\n{outcome.lines[-5:]}\n{outcome.errors[-4000:]}"
        return outcome

    return run


def _need_sanitizer(build: ModuleType, folder: Path, sanitizer: str) -> None:
    flags = [flag for flag in build.SANITIZERS[sanitizer] if flag.startswith("-fsanitize=")]
    if not flags:
        return
    source, probe = folder / "probe.cpp", folder / f"probe-{sanitizer}"
    source.write_text("int main() { return 0; }\n")
    done = subprocess.run([*build.compiler(), *flags, source, "-o", probe], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot link with {' '.join(flags)}: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="session")
def cuda_library(folder: Path) -> Path:
    """libnanscan_cuda.so by the recipe that setup.py uses; skips where there is no nvcc."""
    try:
        _build.find_nvcc(os.environ)
    except _build.BuildError as err:
        if os.environ.get("NANSCAN_BUILD") == "cuda":
            pytest.fail(f"NANSCAN_BUILD=cuda: {err}")
        pytest.skip(str(err))
    # In the folder of setup.py's build, which is done already where the sources are the same
    try:
        return _build.compile_cuda(CSRC, HERE.parents[1] / "build" / "cuda", os.environ)
    except _build.BuildError as err:
        pytest.fail(f"{err}\n{err.output[-4000:]}")


@pytest.fixture(scope="session")
def late_library(build: ModuleType, folder: Path) -> Path:
    """The stand-in whose records are late: see shim/late.cpp."""
    from nanscan import backends

    if backends.get().core is None:
        pytest.skip(f"the device path is part of the compiled core: {backends.get().why}")
    return build.late(folder)


Device = bool | str  # the stand-in library, or none; or what reads devices without one: see programs/late.py


@pytest.fixture(scope="session")
def start_program(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """start_program(name, *arguments, device=True): one of programs/, in a process of its own with that device."""

    def start(name: str, *arguments: object, device: Device = True) -> subprocess.CompletedProcess[str]:
        what = request.getfixturevalue("late_library") if device is True else device or "cpu"
        environment = {k: v for k, v in os.environ.items() if k not in ("NANSCAN", "NANSCAN_DIR", "NANSCAN_EVERY")}
        command = [sys.executable, HERE / "programs" / f"{name}.py", what, *arguments]
        return subprocess.run(
            [*map(str, command)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**environment, "OMP_NUM_THREADS": "1", "NANSCAN_ON_ANOMALY": ""},
        )

    return start


@pytest.fixture(scope="session")
def answer_of(start_program: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """answer_of(name, *arguments, device=True): what the program found; asked once, however many tests want to know."""
    answers: dict[object, Any] = {}

    def ask(name: str, *arguments: object, device: Device = True) -> Any:
        key = (name, arguments, device)
        if key not in answers:
            done = start_program(name, *arguments, device=device)
            assert done.returncode == 0, f"{name} exited with {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
            answers[key] = json.loads(done.stdout.splitlines()[-1])
        return answers[key]

    return ask
