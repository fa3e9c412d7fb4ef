"""The recipe of the core: what it depends on, what it says when something is missing."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanscan import _build

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def recipe(tiny_csrc: Path) -> _build.Recipe:
    return dataclasses.replace(_build.recipe(torch, ENV), csrc=tiny_csrc)


def test_the_core_is_always_built_with_ndebug() -> None:
    assert "-DNDEBUG" in _build.FLAGS
    assert not {"-ffast-math", "-Ofast", "-ffinite-math-only"} & set(_build.FLAGS)


def test_the_core_says_which_torch_it_is_for(recipe: _build.Recipe, tmp_path: Path) -> None:
    core = _build.compile_core(recipe, tmp_path / "build", ENV)
    assert _build.built_for(core) == torch.__version__
    other = dataclasses.replace(recipe, torch_version="2.11.0")
    assert _build.built_for(_build.compile_core(other, tmp_path / "build", ENV)) == "2.11.0"


def test_a_file_that_is_no_core_is_for_no_torch(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF")
    assert _build.built_for(tmp_path / "x") is None


def test_only_what_changed_is_compiled_again(recipe: _build.Recipe, tiny_csrc: Path, tmp_path: Path) -> None:
    # GIVEN a build of two units, one of which includes a header
    (tiny_csrc / "two.h").write_text("int two();\n")
    (tiny_csrc / "two.cpp").write_text('#include "two.h"\nint two() { return 2; }\n')
    folder = tmp_path / "build"

    def times() -> list[int]:
        _build.compile_core(recipe, folder, ENV)
        return [(folder / name).stat().st_mtime_ns for name in ("bindings.cpp.o", "two.cpp.o")]

    first = times()
    assert times() == first
    # WHEN the header changes THEN its includer alone is compiled
    (tiny_csrc / "two.h").write_text("int two();  // changed\n")
    second = times()
    assert second[0] == first[0]
    assert second[1] != first[1]


def test_folders_with_odd_names_build(recipe: _build.Recipe, tiny_csrc: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a b$c:d"
    tiny_csrc.rename(odd)
    assert _build.compile_core(dataclasses.replace(recipe, csrc=odd), tmp_path / "out $x", ENV).is_file()


def test_the_key_follows_sources_compiler_and_torch_but_not_places(recipe: _build.Recipe, tiny_csrc: Path) -> None:
    first = recipe.key
    assert f"torch-{torch.__version__}-" in first
    assert dataclasses.replace(recipe, includes=("-I/elsewhere",), library_dir=Path("/elsewhere")).key == first
    assert dataclasses.replace(recipe, compiler_version="g++ 99").key != first
    assert dataclasses.replace(recipe, flags=(*recipe.flags, "-g")).key != first
    (tiny_csrc / "new.h").write_text("")
    assert recipe.key != first


def test_a_compiler_error_is_told_in_its_own_line(recipe: _build.Recipe, tiny_csrc: Path, tmp_path: Path) -> None:
    (tiny_csrc / "wrong.cpp").write_text("int f() { return nowhere; }\n")
    with pytest.raises(_build.BuildError, match=r"wrong\.cpp:1:\d+: error: .*nowhere"):
        _build.compile_core(recipe, tmp_path / "build", ENV)
    assert "nowhere" in (tmp_path / "build" / "build.log").read_text()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param({"PATH": "/nowhere"}, "no C\\+\\+ compiler", id="no-compiler"),
        pytest.param({**ENV, "CXX": "/no/such/c++"}, "CXX='/no/such/c\\+\\+' is not there", id="wrong-CXX"),
    ],
)
def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], message: str) -> None:
    monkeypatch.setenv("PATH", env["PATH"])
    with pytest.raises(_build.BuildError, match=message):
        _build.recipe(torch, env)


def test_missing_headers_are_named(tmp_path: Path) -> None:
    fake = SimpleNamespace(__file__=str(tmp_path / "torch" / "__init__.py"), __version__="9")
    with pytest.raises(_build.BuildError, match="no torch headers in"):
        _build.recipe(fake, ENV)


# Says which version it is, and writes its arguments where the library should be.
FAKE_NVCC = """#!/bin/sh
for last; do :; done
case "$1" in --version) echo "$FAKE_VERSION"; exit 0 ;; esac
grep -n nowhere "$FAKE_SOURCE" && { echo 'device_ring.cu(3): error: identifier "nowhere" is undefined'; exit 2; }
echo "$@" > "$last"
"""


@pytest.fixture
def fake_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, str]]:
    """A csrc with a CUDA source, and an environment with a compiler for it."""
    csrc, tool = tmp_path / "csrc", tmp_path / "cuda" / "bin" / "nvcc"
    source = csrc / _build.CUDA_SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("int x;\n")
    tool.parent.mkdir(parents=True)
    tool.write_text(FAKE_NVCC)
    tool.chmod(0o755)
    monkeypatch.setenv("FAKE_VERSION", "1")
    monkeypatch.setenv("FAKE_SOURCE", str(source))
    return csrc, {"PATH": "/usr/bin:/bin", "CUDA_HOME": str(tmp_path / "cuda")}


def test_the_cuda_library_is_built_for_every_architecture(fake_nvcc, tmp_path: Path) -> None:
    csrc, env = fake_nvcc
    said = _build.compile_cuda(csrc, tmp_path / "out", env).read_text()
    for word in ("sm_80", "sm_90", "sm_100", "code=compute_100", "-cudart static", "-Werror,-warn-spills"):
        assert word in said


def test_the_cuda_library_is_built_again_when_something_changed(fake_nvcc, tmp_path: Path, monkeypatch) -> None:
    csrc, env = fake_nvcc

    def built() -> int:
        return _build.compile_cuda(csrc, tmp_path / "out", env).stat().st_mtime_ns

    first = built()
    assert built() == first
    (csrc / "record").mkdir()
    (csrc / "record" / "record.h").write_text("int y;\n")
    second = built()
    assert second != first
    (csrc / "hooks").mkdir()
    (csrc / "hooks" / "hook.h").write_text("int z;\n")  # no part of it
    assert built() == second
    monkeypatch.setenv("FAKE_VERSION", "2")
    assert built() != second


def test_an_nvcc_error_is_told_in_its_own_line(fake_nvcc, tmp_path: Path) -> None:
    csrc, env = fake_nvcc
    (csrc / _build.CUDA_SOURCE).write_text("int x = nowhere;\n")
    with pytest.raises(_build.BuildError, match=r'device_ring\.cu\(3\): error: identifier "nowhere"'):
        _build.compile_cuda(csrc, tmp_path / "out", env)
    assert not (tmp_path / "out" / _build.CUDA_LIBRARY).exists()


def test_a_missing_nvcc_is_named() -> None:
    with pytest.raises(_build.BuildError, match="no nvcc \\(looked on PATH and under CUDA_HOME"):
        _build.find_nvcc({"PATH": "/nowhere"})
    with pytest.raises(_build.BuildError, match="NVCC='/no/such/nvcc' is not there"):
        _build.find_nvcc({"NVCC": "/no/such/nvcc", "PATH": "/usr/bin"})
