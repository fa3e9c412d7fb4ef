"""The rules as text, as golden text of made-up ones: the list, one rule, the page."""

from __future__ import annotations

import pytest

from nanscan.report import causes
from nanscan.why import Rule

FAMILIES = {"1": "Outside a function's domain", "2": "Overflow", "3": "Nobody's"}


def make_rule(id: str = "NS101", cause: str = "log of zero", **fields) -> Rule:
    base = {
        "when": lambda situation: None, "why": "log(0) is -Inf. More: it spreads.", "remedy": "x.clamp_min(tiny)",
        "example": "import torch\n\nprint(1)\n",
    }  # fmt: skip
    return Rule(id=id, cause=cause, **{**base, **fields})


def test_the_list() -> None:
    rules = [
        make_rule(),
        make_rule(
            "NS103", "sqrt of a negative number", why=f"sqrt of -1 is {'not a real number and ' * 4}so on. More."
        ),
        make_rule("NS201", "exp overflow", why="exp(x) grows!"),
    ]
    assert causes.list_lines(rules, FAMILIES) == [
        "Outside a function's domain",
        "  NS101  log of zero                log(0) is -Inf.",
        "  NS103  sqrt of a negative number  sqrt of -1 is not a real number and not a real number and...",
        "",
        "Overflow",
        "  NS201  exp overflow  exp(x) grows!",
    ]


@pytest.mark.parametrize("n", [1, 10, 100])
def test_the_list_has_at_most_a_hundred_columns(n: int) -> None:
    lines = causes.list_lines([make_rule(why="word, " * n + "end. More.")], FAMILIES)
    assert max(map(len, lines)) <= 100
    assert lines[1].endswith("..." if n > 10 else "end.")


def test_one_rule() -> None:
    why = "log(0) is -Inf. A probability, a distance or a sum of counts that rounds to exactly 0 is enough for that."
    assert causes.rule_lines(make_rule(why=why), FAMILIES) == [
        "NS101  log of zero  (Outside a function's domain)",
        "  why     log(0) is -Inf. A probability, a distance or a sum of counts that rounds to exactly 0 is",
        "          enough for that.",
        "  remedy  x.clamp_min(tiny)",
        "  example",
        "",
        "import torch",
        "",
        "print(1)",
    ]
    assert causes.rule_lines(make_rule(companion=True), FAMILIES)[0].endswith("domain, beside the cause)")


def test_the_page() -> None:
    rules = [
        make_rule(why="0 * inf is NaN. `_foreach_add_` and a < b[0] * c_d are words."),
        make_rule("NS102", "0 * inf", companion=True),
        make_rule("NS201", "exp overflow"),
    ]
    page = causes.page(rules, FAMILIES)
    head, contents, rest = page.partition(
        "- [Outside a function's domain](#outside-a-functions-domain): NS101 to NS102\n"
    )
    assert head.startswith("# Causes\n\n<!-- made by: nanscan explain --markdown > docs/causes.md -->\n")
    assert contents
    assert rest == (
        "- [Overflow](#overflow): NS201\n\n"
        "## Outside a function's domain\n\n"
        "### NS101 log of zero\n\n"
        "0 \\* inf is NaN. \\`\\_foreach_add\\_\\` and a \\< b\\[0] \\* c_d are words.\n\n"
        "**Remedy:** x.clamp_min(tiny)\n\n"
        "```python\nimport torch\n\nprint(1)\n```\n\n"
        "### NS102 0 \\* inf\n\n"
        "*Beside the cause.*\n\n"
        "log(0) is -Inf. More: it spreads.\n\n"
        "**Remedy:** x.clamp_min(tiny)\n\n"
        "```python\nimport torch\n\nprint(1)\n```\n\n"
        "## Overflow\n\n"
        "### NS201 exp overflow\n\n"
        "log(0) is -Inf. More: it spreads.\n\n"
        "**Remedy:** x.clamp_min(tiny)\n\n"
        "```python\nimport torch\n\nprint(1)\n```\n"
    )
    assert all(len(line) <= 120 for line in page.splitlines())


def test_a_declaration_for_machines() -> None:
    made = causes.to_dict(make_rule(ops=frozenset({"log2", "log"}), rank=60), FAMILIES)
    assert made == {
        "id": "NS101", "cause": "log of zero", "family": "Outside a function's domain",
        "why": "log(0) is -Inf. More: it spreads.", "remedy": "x.clamp_min(tiny)",
        "example": "import torch\n\nprint(1)\n", "ops": ["log", "log2"], "rank": 60, "companion": False,
    }  # fmt: skip


def test_sentences() -> None:
    assert causes.sentences("log(0) is -Inf. 0.5 is not! Why? ") == ["log(0) is -Inf.", "0.5 is not!", "Why?"]
