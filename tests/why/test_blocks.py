"""What a user reads: the whole block of twelve causes, word for word, from the catalogue's own examples.

After a wanted change: ``NANSCAN_UPDATE_GOLDEN=1 pytest tests/why/test_blocks.py``, and read the difference.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import warnings
from pathlib import Path

import pytest
import torch

from nanscan.backends import get
from nanscan.why import rule

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")

GOLDEN = Path(__file__).parent / "golden"
RULES = (
    *("NS101", "NS103", "NS111", "NS201", "NS202", "NS301", "NS303", "NS304"),
    *("NS401", "NS409", "NS501", "NS503", "NS601", "NS602", "NS604"),
)


def block_of(id: str) -> str:
    """What the example of a rule prints, as example.py in the working directory: no path, so that lines break alike."""
    one = rule(id)
    assert one is not None
    Path("example.py").write_text(one.example)
    linecache.clearcache()
    torch.manual_seed(0)
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        exec(compile(one.example, "example.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.mark.parametrize("id", RULES)
def test_the_block(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = block_of(id)
    lines = block.rstrip("\n").split("\n")
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 100
    assert f"nanscan explain NS{id[2:]}" in " ".join(block.split()) or id == "NS409"
    path = GOLDEN / f"{id}.txt"
    if os.environ.get("NANSCAN_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(block)
    assert block == path.read_text()
