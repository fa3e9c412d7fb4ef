"""The block for notebooks: the same rows as in a terminal, escaped, with nothing active and nothing from outside."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from nanscan.report import Block, block_html, decide_culprit, event_html, lines_html

TAGS = {"div", "strong", "table", "tr", "th", "td", "pre"}
NASTY = "<script>alert(1)</script>\"'&"


class Reader(HTMLParser):
    """What a browser would see: tags, attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], "tags are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_block(make_event) -> None:
    plain = "background:none;border:none;color:inherit"
    cell = f"padding:0 1em 0 0;text-align:left;vertical-align:top;{plain}"
    pre = f"margin:0;padding:0;white-space:pre-wrap;overflow-wrap:anywhere;{plain}"
    block = Block("nanscan: A & B", (("where", "x < y"), ("empty", ""), ("next", "go")), (("where", "more"),))
    assert block_html(block, ["a note", "and one"]).splitlines() == [
        '<div style="text-align:left">',
        "<strong>nanscan: A &amp; B</strong>",
        f'<table style="border-collapse:collapse;margin:0;{plain}">',
        f'<tr style="{plain}"><th style="{cell}">where</th><td style="{cell}">'
        f'<pre style="{pre}">x &lt; y; more</pre></td></tr>',
        f'<tr style="{plain}"><th style="{cell}">next</th><td style="{cell}"><pre style="{pre}">go</pre></td></tr>',
        "</table>",
        f'<pre style="{pre}">a note',
        "and one</pre>",
        "</div>",
    ]


def test_lines() -> None:
    seen = Reader(lines_html(["nanscan: healthy. <1 step>", "  watched 3 modules"]))
    assert seen.text.strip() == "nanscan: healthy. <1 step>\n  watched 3 modules"
    assert seen.tags == {"div", "pre"}


def test_an_event_shows_itself_with_the_rows_of_the_terminal(make_event) -> None:
    event = make_event(cause="log of zero", rule="NS101", others=("0 * inf",))
    made = event._repr_html_()
    assert made == event_html(event)
    seen = Reader(made)
    # An event by itself need not be the first, and does not say so.
    assert seen.text.strip().startswith(f"nanscan: {event}")
    for name, text in decide_culprit(event).whole:
        assert f"{name}{text}" in seen.text
    assert "log of zero (NS101); also fits: 0 * inf" in seen.text


def test_a_warning_shows_itself(make_event) -> None:
    event = make_event(severity="warning", kind="explosion", stats=None, evidence=("gradients grew", "9 of 11"))
    assert "whatgradients grew" in Reader(event._repr_html_()).text


@pytest.mark.parametrize("field", ["module", "module_type", "op", "source", "tensor", "last_clean", "cause", "remedy"])
def test_names_are_text(make_event, field: str) -> None:
    made = make_event(**{field: NASTY})._repr_html_()
    assert "<script" not in made
    seen = Reader(made)
    assert NASTY in seen.text
    assert seen.tags <= TAGS
    assert seen.attributes == {"style"}


@pytest.mark.parametrize("field", ["chain", "evidence", "others"])
def test_lists_are_text(make_event, field: str) -> None:
    fields = {"cause": "log of zero", field: (NASTY, NASTY)}
    seen = Reader(make_event(**fields)._repr_html_())
    assert NASTY in seen.text
    assert seen.tags <= TAGS


def test_nothing_comes_from_outside_or_fixes_a_colour(make_event) -> None:
    made = make_event()._repr_html_()
    for word in ("http", "url(", "src=", "href=", "import", "rgb"):
        assert word not in made
    assert made.count("color:") == made.count("color:inherit")


def test_a_name_that_no_notebook_could_store(make_event) -> None:
    assert "a\\udc80b" in make_event(module="a\udc80b")._repr_html_().encode().decode()


def test_without_the_reports_an_event_is_shown_as_text() -> None:
    code = (
        "from nanscan.events import Event\n"
        "assert Event(severity='error', kind='nan', phase='forward', step=0)._repr_html_() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
