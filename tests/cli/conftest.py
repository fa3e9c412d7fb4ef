"""The ``nanscan`` command in a process of its own, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment without nanscan's own variables: their effect is tested where they are read."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NANSCAN_")}


@pytest.fixture
def python(tmp_path: Path, environment: dict[str, str]) -> Command:
    """``python ...`` in tmp_path: python("script.py", "--lr", "3")."""

    def call(*words: str, env: dict[str, str] | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return call


@pytest.fixture
def nanscan(python: Command) -> Command:
    """``nanscan ...`` in tmp_path: nanscan("run", "script.py")."""
    return lambda *words, **options: python("-m", "nanscan", *words, **options)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Put a file into tmp_path."""

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return put
