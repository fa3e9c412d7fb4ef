"""Every relative link of the documentation leads somewhere, anchors included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOBS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
PAGES = sorted({path.relative_to(ROOT).as_posix() for glob in GLOBS for path in ROOT.glob(glob)})


def anchors(text: str) -> set[str]:
    """Ids that a page's headings get: lower case, spaces to hyphens, punctuation gone."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_pages_are_there() -> None:
    wanted = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/reading-a-report.md"}
    assert wanted - set(PAGES) == set()


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(link)
    assert broken == []
