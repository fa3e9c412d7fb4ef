"""A block of rows as terminal lines: plain ASCII, at most 12 lines of at most 100 columns."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINES = 12
MAX_COLUMNS = 100
_INDENT = "          "  # under the text of a row


@dataclass(frozen=True, slots=True)
class Block:
    """A title and named rows; rows without text are left out. The last row is the next command and always stays."""

    title: str
    rows: tuple[tuple[str, str], ...]


def draw(block: Block) -> list[str]:
    """One line per row, long rows wrapped once, the least important ones cut when it gets too much."""
    rows = [(name, ascii_only(text)) for name, text in block.rows if text]
    wrapped = [_wrap(name, text) for name, text in rows]
    while 1 + sum(map(len, wrapped)) > MAX_LINES:
        longest = max(range(len(wrapped)), key=lambda i: len(wrapped[i]))
        if len(wrapped[longest]) > 1:
            name, text = rows[longest]
            wrapped[longest] = [_cut(f"  {name:<8}{text}")]
        else:
            del wrapped[-2]  # never the next command
            del rows[-2]
    return [_cut(ascii_only(block.title)), *(line for lines in wrapped for line in lines)]


def ascii_only(text: str) -> str:
    """Module and parameter names may hold anything; logs and old terminals may not."""
    return " ".join(text.encode("ascii", "backslashreplace").decode().split("\n"))


def _wrap(name: str, text: str) -> list[str]:
    line = f"  {name:<8}{text}"
    if len(line) <= MAX_COLUMNS:
        return [line]
    at = line.rfind(" ", len(_INDENT) + 1, MAX_COLUMNS + 1)
    if at < 0:
        return [_cut(line)]
    return [line[:at].rstrip(), _cut(_INDENT + line[at:].lstrip())]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_COLUMNS else line[: MAX_COLUMNS - 3] + "..."
