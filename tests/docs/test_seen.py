"""docs/what-is-seen.md: every row names a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def rows_of(root: Path) -> list[str]:
    text = (root / "docs" / "what-is-seen.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not re.match(r"\| (-|Code|Tensor|Where)", row)]


def test_each_row_has_its_proof(root: Path) -> None:
    rows = rows_of(root)
    assert len(rows) > 30
    for row in rows:
        proofs = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert proofs, f"no test is named in: {row}"
        for path, name in proofs:
            assert (root / path).is_file(), row
            if name:
                tree = ast.parse((root / path).read_text())
                assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, row
