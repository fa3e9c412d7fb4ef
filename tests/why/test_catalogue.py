"""The rules as data: ids, words, examples; and that the case corpus asks for no word they do not know."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from nanscan.report.causes import sentences
from nanscan.why import CAUSES, RULES, Rule, rule
from nanscan.why.catalogue import FAMILIES
from nanscan.why.rules.overflow import OVERFLOWS

CASES = sorted((Path(__file__).parents[1] / "cases").glob("c[0-9]*_*.py"))
MAX_REMEDY = 90

# Words of the case corpus about a training's course, of cases without a NaN or Inf; the growth watch speaks there.
OF_HEALTH = {
    "clipping before unscaling",
    "dead ReLU",
    "gradient blow-up at a zero vector",
    "gradient underflow",
    "missing zero_grad",
}
each = pytest.mark.parametrize("one", RULES, ids=lambda one: one.id)


def test_ids_are_unique_and_in_order() -> None:
    ids = [one.id for one in RULES]
    assert [id for id, n in Counter(ids).items() if n > 1] == []
    assert ids == sorted(ids)


@each
def test_an_id_is_of_a_family_and_is_found(one: Rule) -> None:
    assert re.fullmatch(r"NS\d{3}", one.id)
    assert one.id[2] in FAMILIES
    assert rule(one.id) is rule(one.id.lower()) is one


def test_an_unknown_id_is_none() -> None:
    assert rule("NS000") is None
    assert rule("") is None


@each
def test_a_cause_is_a_short_line(one: Rule) -> None:
    assert one.cause == one.cause.strip() != ""
    assert one.cause != "unknown"
    assert len(one.cause) <= 50
    assert one.cause.isascii()
    assert "\n" not in one.cause
    assert not one.cause.endswith(".")


@each
def test_why_is_two_to_four_sentences(one: Rule) -> None:
    assert "\n" not in one.why
    assert "  " not in one.why
    assert one.why.isascii()
    assert one.why.endswith(".")
    assert 2 <= len(sentences(one.why)) <= 4, sentences(one.why)


@each
def test_a_remedy_is_one_line(one: Rule) -> None:
    assert one.remedy == one.remedy.strip() != ""
    assert "\n" not in one.remedy
    assert one.remedy.isascii()
    assert len(one.remedy) <= MAX_REMEDY, len(one.remedy)


@each
def test_an_example_is_a_program_that_prints_its_report(one: Rule) -> None:
    tree = ast.parse(one.example, one.id)
    assert ast.unparse(tree.body[-1]) == "print(scanner.report())"
    assert one.example.endswith("\n")
    assert not one.example.startswith("\n")
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert {"torch", "nanscan"} <= imported
    assert max(map(len, one.example.splitlines())) <= 100


def test_no_example_is_given_twice() -> None:
    programs = Counter(ast.dump(ast.parse(one.example)) for one in RULES)
    assert [one.id for one in RULES if programs[ast.dump(ast.parse(one.example))] > 1] == []


@each
def test_ops_are_bare_names(one: Rule) -> None:
    assert [op for op in one.ops if "::" in op or op.strip() != op or not op] == []


def test_the_vocabulary_is_that_of_the_rules() -> None:
    assert CAUSES[-1] == "unknown"
    assert len(set(CAUSES)) == len(CAUSES)
    assert {*CAUSES} - {"unknown"} == {one.cause for one in RULES} | {*OVERFLOWS}


def test_every_family_has_rules() -> None:
    assert sorted({one.id[2] for one in RULES}) == sorted(FAMILIES)


def causes_of_the_corpus() -> dict[str, list[str]]:
    """cause -> cases that expect it. Their files are read, not run."""
    found: dict[str, list[str]] = {}
    for path in CASES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECT":
                cause = ast.literal_eval(node.value)["cause"]
                if cause is not None:
                    found.setdefault(cause, []).append(path.stem)
    return found


def test_the_corpus_asks_for_no_other_word() -> None:
    asked = causes_of_the_corpus()
    assert {cause: cases for cause, cases in asked.items() if cause not in {*CAUSES, *OF_HEALTH}} == {}
    assert OF_HEALTH - asked.keys() == set(), "no case uses these any more"
    assert OF_HEALTH & set(CAUSES) == set(), "rules know these by now"
