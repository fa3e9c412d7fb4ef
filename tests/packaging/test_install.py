"""Installing as a user does: without torch in the build environment, and with everything the wheel has to carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PROJECT = ("nanscan", "csrc", "examples", "triton_kernels", "setup.py", "pyproject.toml", "README.md", "LICENSE")
CODE = (".h", ".cpp", ".cu", ".cuh")
BUILD = "from setuptools import build_meta; build_meta.build_{kind}({to!r})"


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """What a build needs of the repository, copied: building in place would leave its traces there."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in PROJECT:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        elif (root / name).is_file():
            shutil.copy(root / name, copy / name)
    return copy


def run(*argv: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NANSCAN") and k != "PYTHONPATH"}
    words = [str(word) for word in argv]
    return subprocess.run(words, cwd=cwd, env={**clean, **env}, text=True, capture_output=True, timeout=900)


def csrc_files(root: Path) -> set[str]:
    return {p.relative_to(root / "csrc").as_posix() for p in (root / "csrc").rglob("*") if p.suffix in CODE}


def test_a_wheel_without_the_core_is_pure_and_carries_the_sources(project: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", BUILD.format(kind="wheel", to=str(tmp_path)), cwd=project, NANSCAN_BUILD="none")
    assert done.returncode == 0, done.stderr
    assert "nanscan: the core is not built now (NANSCAN_BUILD=none); compiled at first use instead" in done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"nanscan/_csrc/{name}" for name in csrc_files(project)} <= names
    assert {"nanscan/py.typed", "nanscan/_build.py", "nanscan/backends/native.py"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"nanscan"}


def test_triton_kernels_is_installed_under_our_own_name_only(project: Path, tmp_path: Path) -> None:
    (project / "triton_kernels").mkdir(exist_ok=True)
    (project / "triton_kernels" / "planted.py").write_text("")
    done = run(sys.executable, "-c", BUILD.format(kind="wheel", to=str(tmp_path)), cwd=project, NANSCAN_BUILD="none")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "nanscan/triton_kernels/planted.py" in names
    assert not [name for name in names if name.startswith("triton_kernels")]


def test_the_sdist_carries_the_sources(project: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", BUILD.format(kind="sdist", to=str(tmp_path)), cwd=project, NANSCAN_BUILD="none")
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"csrc/{name}" for name in csrc_files(project)} <= names
    assert {"setup.py", "pyproject.toml", "LICENSE", "nanscan/_build.py", "nanscan/py.typed"} <= names


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NANSCAN_BUILD": "none"}, "NANSCAN_REQUIRE_NATIVE=1, but the core cannot be built: NANSCAN_BUILD=none"),
        (
            {"CXX": "/no/such/c++"},
            "NANSCAN_REQUIRE_NATIVE=1, but the core did not build: CXX='/no/such/c++' is not there",
        ),
    ],
)
def test_a_required_core_fails_the_build(project: Path, tmp_path: Path, env: dict[str, str], message: str) -> None:
    code = BUILD.format(kind="wheel", to=str(tmp_path))
    done = run(sys.executable, "-c", code, cwd=project, NANSCAN_REQUIRE_NATIVE="1", **env)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_core_that_does_not_build_is_left_out_with_a_line(project: Path, tmp_path: Path) -> None:
    code = BUILD.format(kind="wheel", to=str(tmp_path))
    done = run(sys.executable, "-c", code, cwd=project, NANSCAN_BUILD="cpu", CXX="/no/such/c++")
    assert done.returncode == 0, done.stderr
    line = "nanscan: the core did not build (CXX='/no/such/c++' is not there or not executable); compiled at first use"
    assert line in done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_cuda_without_its_compiler_fails_the_build(project: Path, tmp_path: Path) -> None:
    code = BUILD.format(kind="wheel", to=str(tmp_path))
    done = run(sys.executable, "-c", code, cwd=project, NANSCAN_BUILD="cuda", NVCC="/no/such/nvcc")
    assert done.returncode != 0
    assert "NANSCAN_BUILD=cuda, but the CUDA library did not build: NVCC='/no/such/nvcc' is not there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_cuda_compiler_is_said_once(project: Path, tmp_path: Path) -> None:
    code = BUILD.format(kind="wheel", to=str(tmp_path))
    done = run(sys.executable, "-c", code, cwd=project, NVCC="/no/such/nvcc", CXX="/no/such/c++")
    assert done.returncode == 0, done.stderr
    line = "nanscan: the CUDA library did not build (NVCC='/no/such/nvcc' is not there or not executable); CUDA tensors"
    assert done.stderr.count(line) == 1


# A compiler that takes no time: it writes its arguments where the library should be, and counts its calls.
FAKE_NVCC = """#!/bin/sh
for last; do :; done
case "$1" in --version) echo fake nvcc 1; exit 0 ;; esac
echo call >> "$NVCC_CALLS"
echo "$@" > "$last"
"""


def test_the_cuda_library_is_built_once_and_carried(project: Path, tmp_path: Path) -> None:
    fake, calls = tmp_path / "nvcc", tmp_path / "calls"
    fake.write_text(FAKE_NVCC)
    fake.chmod(0o755)
    code = BUILD.format(kind="wheel", to=str(tmp_path))
    for _ in range(2):
        done = run(sys.executable, "-c", code, cwd=project, NVCC=str(fake), NVCC_CALLS=str(calls), CXX="/no/such/c++")
        assert done.returncode == 0, done.stderr
    assert calls.read_text() == "call\n"  # nothing had changed the second time
    (wheel,) = tmp_path.glob("*.whl")
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so"))
    assert name == "nanscan/libnanscan_cuda.so"


@pytest.mark.slow
def test_isolated_install_without_torch_then_the_core_at_first_use(project: Path, tmp_path: Path, run_python) -> None:
    # GIVEN a fresh environment without torch
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", venv, cwd=tmp_path).returncode == 0
    # WHEN nanscan is installed there as a user would, in pip's isolated build
    done = run(venv / "bin" / "pip", "install", "--no-deps", "-v", project, cwd=tmp_path, NANSCAN_BUILD="cpu")
    # THEN it succeeds, and says what happens next
    assert done.returncode == 0, done.stderr + done.stdout
    assert "the core is not built now (torch is not importable in the build environment)" in done.stdout + done.stderr
    assert (venv / "bin" / "nanscan").is_file()
    (site,) = venv.glob("lib/python*/site-packages")
    assert not list(site.glob("nanscan/_C*.so"))
    # AND WHEN that installation meets torch, the core is compiled from the sources it carries
    code = (
        "import nanscan, torch, nanscan.backends as b\n"
        f"assert nanscan.__file__.startswith({str(site)!r}), nanscan.__file__\n"
        "print(b.get().name, b.get().why, nanscan.scan(torch.tensor([1.0, float('nan')])).nan)"
    )
    only_nanscan = tmp_path / "only"
    only_nanscan.mkdir()
    shutil.move(site / "nanscan", only_nanscan / "nanscan")
    code = code.replace(str(site), str(only_nanscan))
    used = run_python(code, path=only_nanscan)
    assert used.stdout.startswith("native compiled on this machine"), used.stderr
    assert used.stdout.rstrip().endswith(" 1")
    assert used.stderr.count("nanscan: compiling its core") == 1
