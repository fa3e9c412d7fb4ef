"""The block for notebooks: one piece of HTML, everything escaped, no script, nothing to load, no colour of its own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from nanscan.events.event import Event, show_in_notebooks
from nanscan.report.culprit import decide_culprit
from nanscan.report.draw import Block
from nanscan.report.warning import decide_warning

# A notebook's own style sheet stripes the rows of tables and aligns cells to the right; colours are the theme's.
_PLAIN = "background:none;border:none;color:inherit"
_TABLE = f"border-collapse:collapse;margin:0;{_PLAIN}"
_CELL = f"padding:0 1em 0 0;text-align:left;vertical-align:top;{_PLAIN}"
_TEXT = f"margin:0;padding:0;white-space:pre-wrap;overflow-wrap:anywhere;{_PLAIN}"


def block_html(block: Block, notes: Iterable[str] = ()) -> str:
    """A title, a table of the rows, and lines of text below it."""
    rows = "\n".join(
        f'<tr style="{_PLAIN}"><th style="{_CELL}">{_text(name)}</th><td style="{_CELL}">{_pre(text)}</td></tr>'
        for name, text in block.whole
    )
    table = f'<table style="{_TABLE}">\n{rows}\n</table>'
    return _div([f"<strong>{_text(block.title)}</strong>", table, *_below(notes)])


def lines_html(lines: Iterable[str]) -> str:
    """Lines of text as they are: a healthy run has two."""
    return _div(_below(lines))


def event_html(event: Event) -> str:
    """One event by itself, which need not be the first."""
    block = decide_warning(event) if event.severity == "warning" else decide_culprit(event)
    return block_html(Block(f"nanscan: {event}", block.rows, block.extra))


def _below(lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines)
    return [_pre(text)] if text else []


def _div(parts: Iterable[str]) -> str:
    return "\n".join(['<div style="text-align:left">', *parts, "</div>"])


def _pre(text: str) -> str:
    return f'<pre style="{_TEXT}">{_text(text)}</pre>'


def _text(text: str) -> str:
    """Names may hold anything, lone surrogates too, which no notebook can store."""
    return escape(text.encode("utf-8", "backslashreplace").decode())


show_in_notebooks(event_html)
