"""Explain the causes that reports name: all of them in a list, or one whole, with its remedy and an example to run.

Give a rule's id (NS101) or the words of a cause; the beginning of a cause is enough if no other begins so. Needs no
torch and no network.
"""

from __future__ import annotations

import argparse
import json
from difflib import get_close_matches
from typing import Any

from nanscan.report import causes
from nanscan.why.catalogue import CAUSES, FAMILIES, RULES, rule
from nanscan.why.rule import Rule

MAX_NEAR = 5
UNKNOWN = "unknown"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare ``nanscan explain``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="the causes that reports name, with remedies and examples; needs no torch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", metavar="RULE|CAUSE", nargs="*", help='NS101, or "log of zero" (quotes can be left out)'
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the declarations as JSON instead")
    form.add_argument("--markdown", action="store_true", help="print the page docs/causes.md instead, of all rules")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print what was asked for. A name that nothing has is a ValueError, which lists near ones."""
    name = " ".join(args.words)
    if args.markdown and name:
        raise ValueError(f"RULE|CAUSE={name!r} with --markdown: the page has all rules; leave one of the two out")
    rules = find(name) if name else list(RULES)
    if args.json:
        declared = [causes.to_dict(one, FAMILIES) for one in rules]
        print(json.dumps({"schema": causes.SCHEMA, "rules": declared}, indent=2))
    elif args.markdown:
        print(causes.page(rules, FAMILIES), end="")
    elif not name:
        print("\n".join([*causes.list_lines(rules, FAMILIES), "", "nanscan explain NS101 shows one, with an example"]))
    else:
        shown = ["\n".join(causes.rule_lines(one, FAMILIES)) for one in rules] or ["\n".join(causes.unknown_lines())]
        print("\n\n".join(shown))
    return 0


def find(name: str) -> list[Rule]:
    """The rules of that id, or of that cause, or of the one cause that begins so; none for "unknown"."""
    by_id = rule(name)
    if by_id is not None:
        return [by_id]
    begins = [cause for cause in CAUSES if cause.lower().startswith(name.lower())]
    exact = [cause for cause in begins if cause.lower() == name.lower()]
    if len(exact or begins) == 1:
        (cause,) = exact or begins
        return [one for one in RULES if one.cause == cause]
    near = begins or _near(name)
    told = "several causes begin so" if begins else "no rule and no cause has that name"
    offer = f"near: {', '.join(map(repr, near))}; " if near else ""
    raise ValueError(f"RULE|CAUSE={name!r}: {told}; {offer}nanscan explain lists all")


def _near(name: str) -> list[str]:
    """Ids and causes that look like it, then causes with a word that does."""
    wanted = name.lower()
    known = {text.lower(): text for text in (*(one.id for one in RULES), *CAUSES)}
    close = [known[text] for text in get_close_matches(wanted, known, MAX_NEAR, 0.6)]
    words = get_close_matches(wanted, {word for cause in CAUSES for word in cause.lower().split()}, MAX_NEAR, 0.75)
    inside = [cause for cause in CAUSES if any(text in cause.lower() for text in (wanted, *words))]
    return list(dict.fromkeys((*close, *inside)))[:MAX_NEAR]
