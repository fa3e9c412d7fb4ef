"""Reports in two steps: decide what to say (plain data), then draw it (terminal lines, HTML, JSON)."""

from __future__ import annotations

from nanscan.report.culprit import decide_culprit, first_culprit_lines, warning_before
from nanscan.report.draw import Block, draw, note_lines
from nanscan.report.healthy import Watched, healthy_lines
from nanscan.report.html import block_html, event_html, lines_html
from nanscan.report.run import Report, report_lines, to_json
from nanscan.report.warning import decide_warning, warning_lines

__all__ = [
    "Block",
    "Report",
    "Watched",
    "block_html",
    "decide_culprit",
    "decide_warning",
    "draw",
    "event_html",
    "first_culprit_lines",
    "healthy_lines",
    "lines_html",
    "note_lines",
    "report_lines",
    "to_json",
    "warning_before",
    "warning_lines",
]
