"""The documentation as text, and the code and output blocks in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def blocks() -> Callable[[str, str], list[str]]:
    """Fenced blocks of a page in one language, in order: blocks("README.md", "python")."""

    def find(page: str, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)

    return find
