"""The per-user cache: one compiles, all use it; a killed builder blocks nobody; a failure is told, not repeated."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nanscan import _build
from nanscan.backends.on_demand import core_from_cache

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def recipe(tiny_csrc: Path) -> _build.Recipe:
    return dataclasses.replace(_build.recipe(torch, ENV), csrc=tiny_csrc)


def builder(recipe: _build.Recipe, cache: Path) -> subprocess.Popen[str]:
    """core_from_cache in another process; a recipe's repr is the code that makes it."""
    code = (
        "import os\nfrom pathlib import Path, PosixPath\n"
        "from nanscan._build import Recipe\nfrom nanscan.backends.on_demand import core_from_cache\n"
        f"core_from_cache({recipe!r}, Path({str(cache)!r}), os.environ)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_the_first_call_compiles_and_the_second_does_not(
    recipe: _build.Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = core_from_cache(recipe, tmp_path / "cache", ENV)
    said = capsys.readouterr().err
    assert core == tmp_path / "cache" / recipe.key / _build.CORE
    assert said.startswith(f"nanscan: compiling its core for torch {torch.__version__} into")
    assert said.count("\n") == 1
    assert said.endswith(" s\n")
    assert core_from_cache(recipe, tmp_path / "cache", ENV) == core
    assert capsys.readouterr().err == ""
    assert os.listdir(core.parent) == [_build.CORE]


def test_two_that_start_together_compile_once(recipe: _build.Recipe, tmp_path: Path) -> None:
    both = [builder(recipe, tmp_path / "cache") for _ in range(2)]
    said = "".join(process.communicate(timeout=120)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said.count("compiling its core") == 1


def test_a_killed_builder_blocks_nobody(recipe: _build.Recipe, tmp_path: Path) -> None:
    # GIVEN a builder whose compiler never ends
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 300\n")
    endless.chmod(0o755)
    cache = tmp_path / "cache"
    stuck = builder(dataclasses.replace(recipe, compiler=(str(endless),)), cache)
    try:
        deadline = time.monotonic() + 60
        while not list(cache.glob(f"{recipe.key}.tmp*/build.log")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # WHEN it is killed, while its compiler lives on
        stuck.kill()
        stuck.wait()
        # THEN the next one compiles at once, and sweeps up
        began = time.monotonic()
        assert core_from_cache(recipe, cache, ENV).is_file()
        assert time.monotonic() - began < 60
        assert not list(cache.glob("*.tmp*"))
    finally:
        os.killpg(stuck.pid, signal.SIGKILL)
        assert stuck.stderr is not None
        stuck.stderr.close()


def test_a_failure_is_told_with_its_log_and_not_repeated_at_once(
    recipe: _build.Recipe, tiny_csrc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny_csrc / "wrong.cpp").write_text("int f() { return nowhere; }\n")
    with pytest.raises(_build.BuildError, match=r"error: .*nowhere.* \(whole output: .*failed\.log\)"):
        core_from_cache(recipe, tmp_path / "cache", ENV)
    assert capsys.readouterr().err.endswith("... failed\n")
    with pytest.raises(_build.BuildError, match=r"error: .*nowhere.* \(tried \d+ s ago; whole output"):
        core_from_cache(recipe, tmp_path / "cache", ENV)
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(recipe: _build.Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(_build.BuildError, match=r"cannot write to the cache: .*; NANSCAN_CACHE_DIR names another"):
        core_from_cache(recipe, tmp_path / "file" / "cache", ENV)
