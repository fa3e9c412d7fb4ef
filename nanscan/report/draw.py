"""A block of rows as terminal lines: plain ASCII, at most 12 lines of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap

MAX_LINES = 12
MAX_COLUMNS = 100
MAX_NEXT = 3  # lines that the next command may keep
_INDENT = "          "  # under the text of a row


@dataclass(frozen=True, slots=True)
class Block:
    """A title and named rows; rows without text are left out. The last row is the next command and always stays.

    Args:
        extra: (row, text) that is said at the end of that row where there is room for it.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> tuple[tuple[str, str], ...]:
        """The rows that have something to say, with everything that is said in them."""
        more = dict(self.extra)
        rows = [(name, f"{text}; {more[name]}" if text and name in more else text) for name, text in self.rows]
        return tuple((name, text) for name, text in rows if text)


def draw(block: Block) -> list[str]:
    """Rows on as many lines as they need; when it gets too much, the longest is cut, then the least important go."""
    rows, drawn = _on_lines(block.whole)
    if block.extra and 1 + sum(map(len, drawn)) > MAX_LINES:
        rows, drawn = _on_lines(block.rows)
    while 1 + sum(map(len, drawn)) > MAX_LINES:
        # The longest gives up a line, of equals the less important. A command that is cut is none: `next` comes last.
        spare = [len(lines) - 1 for lines in drawn[:-1]] + [len(drawn[-1]) - MAX_NEXT]
        # Where a value went is the least that a user acts on.
        longest = max(range(len(drawn)), key=lambda i: (rows[i][0] == "chain" and spare[i] > 0, spare[i], i))
        if spare[longest] > 0:
            drawn[longest] = _wrap(*rows[longest], len(drawn[longest]) - 1)
        else:
            del drawn[-2], rows[-2]
    return [_cut(ascii_only(block.title)), *(line for lines in drawn for line in lines)]


def note_lines(notes: Iterable[str]) -> list[str]:
    """What a scanner says of itself, below the block."""
    return [
        line
        for note in notes
        for line in wrap(
            ascii_only(f"nanscan: {note}"),
            MAX_COLUMNS,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,  # a path stays whole
        )
    ]


def ascii_only(text: str) -> str:
    """Module and parameter names may hold anything; logs and old terminals may not."""
    return " ".join(text.encode("ascii", "backslashreplace").decode().split("\n"))


def _on_lines(named: Iterable[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Rows with text, and each of them on as many lines as it needs."""
    rows = [(name, ascii_only(text)) for name, text in named if text]
    return rows, [_wrap(*row, MAX_LINES) for row in rows]


def _wrap(name: str, text: str, n_lines: int) -> list[str]:
    """A row in at most `n_lines` lines, the last of them cut if need be."""
    line, lines = f"  {name:<8}{text}", list[str]()
    while len(line) > MAX_COLUMNS and len(lines) < n_lines - 1:
        at = line.rfind(" ", len(_INDENT) + 1, MAX_COLUMNS + 1)
        if at < 0:
            break
        lines.append(line[:at].rstrip())
        line = _INDENT + line[at:].lstrip()
    return [*lines, _cut(line)]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_COLUMNS else line[: MAX_COLUMNS - 3] + "..."
