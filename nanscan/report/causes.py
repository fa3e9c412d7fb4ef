"""The rules as people read them: the list, one rule whole, the page docs/causes.md, and JSON for machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from nanscan.report.draw import MAX_COLUMNS
from nanscan.why import Rule

SCHEMA = 1
UNKNOWN = (
    "No rule recognises what happened. The report then gives the facts that are known and no guess: the place, the "
    "value, what was read. A cause is named only where the numbers at the first bad place show it."
)
_PAGE_COLUMNS = 118
_INTRO = (
    "What `why` may say in a report, and `Event.cause` in a program: a closed list of words. A rule looks at the call "
    "that made the first bad value and at the numbers it was given, and applies only where these show the cause. Its "
    "id, such as NS101, is `Event.rule`; the first digit is the family. An id is never given to another cause.",
    "Several rules can apply to one call. The most specific one names the cause; the causes of the others are in "
    '`Event.others`, and the report says "also fits". A rule that is marked *beside the cause* never names it: it says '
    "where the value was hidden, or what made it worse, and its remedy is then the one that is shown.",
    f"`unknown` is an answer. {UNKNOWN}",
    "Every example is a whole program that goes wrong in this one way and prints its report. `nanscan explain` shows "
    "this list in a terminal, `nanscan explain NS101` one rule; neither needs torch or a network.",
)


def sentences(text: str) -> list[str]:
    """A text cut behind each full stop."""
    return re.split(r"(?<=[.!?])\s+", text.strip())


def family_of(rule: Rule, families: Mapping[str, str]) -> str:
    """Heading of its family: ``Overflow`` for NS201."""
    return families[rule.id[2]]


def list_lines(rules: Sequence[Rule], families: Mapping[str, str]) -> list[str]:
    """A heading for each family that has rules, a line for each rule: id, cause, the first sentence of its why."""
    lines: list[str] = []
    for heading, members in _by_family(rules, families):
        width = max(len(rule.cause) for rule in members)
        lines += [*([""] if lines else []), heading]
        lines += [_cut(f"  {rule.id}  {rule.cause:<{width}}  {sentences(rule.why)[0]}") for rule in members]
    return lines


def rule_lines(rule: Rule, families: Mapping[str, str]) -> list[str]:
    """One rule whole. The example stands at the margin, ready to be copied."""
    beside = ", beside the cause" if rule.companion else ""
    return [
        f"{rule.id}  {rule.cause}  ({family_of(rule, families)}{beside})",
        *_row("why", rule.why),
        *_row("remedy", rule.remedy),
        "  example",
        "",
        *rule.example.rstrip("\n").split("\n"),
    ]


def unknown_lines() -> list[str]:
    """What it means that no rule applies."""
    return ["unknown", *_row("why", UNKNOWN), *_row("remedy", "print(scanner.first) shows every field of the event")]


def to_dict(rule: Rule, families: Mapping[str, str]) -> dict[str, Any]:
    """Its declaration, JSON-able."""
    return {
        "id": rule.id,
        "cause": rule.cause,
        "family": family_of(rule, families),
        "why": rule.why,
        "remedy": rule.remedy,
        "example": rule.example,
        "ops": sorted(rule.ops),
        "rank": rule.rank,
        "companion": rule.companion,
    }


def page(rules: Sequence[Rule], families: Mapping[str, str]) -> str:
    """docs/causes.md."""
    parts = ["# Causes", "<!-- made by: nanscan explain --markdown > docs/causes.md -->", *map(_paragraph, _INTRO)]
    found = list(_by_family(rules, families))
    parts.append("\n".join(f"- [{heading}](#{_anchor(heading)}): {_span(members)}" for heading, members in found))
    for heading, members in found:
        parts.append(f"## {heading}")
        for rule in members:
            parts += [f"### {rule.id} {_escape(rule.cause)}"]
            parts += ["*Beside the cause.*"] if rule.companion else []
            parts += [_paragraph(_escape(rule.why)), _paragraph(f"**Remedy:** {_escape(rule.remedy)}")]
            parts.append(f"```python\n{rule.example.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _by_family(rules: Sequence[Rule], families: Mapping[str, str]) -> Iterable[tuple[str, list[Rule]]]:
    for digit, heading in families.items():
        members = [rule for rule in rules if rule.id[2] == digit]
        if members:
            yield heading, members


def _span(members: Sequence[Rule]) -> str:
    first, last = members[0].id, members[-1].id
    return first if first == last else f"{first} to {last}"


def _row(name: str, text: str) -> list[str]:
    return wrap(
        f"{name:<8}{text}", MAX_COLUMNS, initial_indent="  ", subsequent_indent=" " * 10,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _cut(line: str) -> str:
    """At a word's end, with dots."""
    if len(line) <= MAX_COLUMNS:
        return line
    return f"{line[: MAX_COLUMNS - 3].rpartition(' ')[0].rstrip(' ,;:')}..."


def _paragraph(text: str) -> str:
    return "\n".join(wrap(text, _PAGE_COLUMNS, break_long_words=False, break_on_hyphens=False))


def _escape(text: str) -> str:
    """Words for Markdown: what would become emphasis, code, a link or a tag there stays what it is."""
    return re.sub(r"[\\`*<\[]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
