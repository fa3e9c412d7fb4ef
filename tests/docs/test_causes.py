"""docs/causes.md is what the rules say."""

from __future__ import annotations

from pathlib import Path

from nanscan.report import causes
from nanscan.why.catalogue import FAMILIES, RULES


def test_the_page_is_what_the_rules_say(root: Path) -> None:
    shown = (root / "docs" / "causes.md").read_text(encoding="utf-8")
    made = causes.page(RULES, FAMILIES)
    assert shown.splitlines() == made.splitlines(), "run: nanscan explain --markdown > docs/causes.md"
