"""``nanscan explain``: the list, one rule by its id or cause, near names, JSON; without torch."""

from __future__ import annotations

import json

import pytest

from nanscan.cli import explain
from nanscan.report import causes
from nanscan.why import RULES, Rule
from nanscan.why.catalogue import FAMILIES

LOG = next(rule for rule in RULES if rule.id == "NS101")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[Rule]:
    """A catalogue of four rules, in place of the real one."""

    def rule(id: str, cause: str) -> Rule:
        return Rule(id, cause, lambda situation: None, "It happens. Often.", "call f(x)", "print(1)\n")

    rules = [
        rule("NS101", "log of zero"),
        rule("NS102", "log of a negative number"),
        rule("NS201", "exp overflow"),
        rule("NS202", "exp overflow"),
    ]
    monkeypatch.setattr(explain, "RULES", tuple(rules))
    monkeypatch.setattr(explain, "CAUSES", ("log of zero", "log of a negative number", "exp overflow", "unknown"))
    monkeypatch.setattr(explain, "rule", lambda id: {one.id: one for one in rules}.get(id.upper()))
    return rules


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("NS102", ["NS102"], id="id"),
        pytest.param("ns102", ["NS102"], id="id in lower case"),
        pytest.param("log of zero", ["NS101"], id="cause"),
        pytest.param("Log Of Zero", ["NS101"], id="cause in any case"),
        pytest.param("log of a", ["NS102"], id="beginning"),
        pytest.param("exp", ["NS201", "NS202"], id="a cause of two rules"),
        pytest.param("unknown", [], id="unknown"),
    ],
)
def test_a_name_is_found(made_up: list[Rule], name: str, found: list[str]) -> None:
    assert [rule.id for rule in explain.find(name)] == found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(
            "NS103", "no rule and no cause has that name; near: 'NS102', 'NS101', 'NS202', 'NS201'; ", id="id"
        ),
        pytest.param(
            "log", "several causes begin so; near: 'log of zero', 'log of a negative number'; ", id="beginning"
        ),
        pytest.param("overflow", "no rule and no cause has that name; near: 'exp overflow'; ", id="inside"),
        pytest.param("zerro", "no rule and no cause has that name; near: 'log of zero'; ", id="a word"),
        pytest.param("logof zero", "no rule and no cause has that name; near: 'log of zero'; ", id="close"),
        pytest.param("qqq", "no rule and no cause has that name; nanscan", id="nothing near"),
    ],
)
def test_a_name_that_nothing_has(made_up: list[Rule], name: str, says: str) -> None:
    with pytest.raises(ValueError, match="lists all") as told:
        explain.find(name)
    assert str(told.value).startswith(f"RULE|CAUSE={name!r}: {says}")


def test_the_list(nanscan) -> None:
    done = nanscan("explain")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["", "nanscan explain NS101 shows one, with an example"]
    assert lines[:-2] == causes.list_lines(RULES, FAMILIES)
    assert max(map(len, lines)) <= 100
    assert lines[0] == "Outside a function's domain"
    assert lines[1].startswith("  NS101  log of zero ")


@pytest.mark.parametrize("words", [["NS101"], ["ns101"], ["log of zero"], ["log", "of", "zero"]], ids=" ".join)
def test_one_rule(nanscan, words: list[str]) -> None:
    done = nanscan("explain", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == causes.rule_lines(LOG, FAMILIES)
    assert done.stdout.endswith(LOG.example)


def test_all_rules_of_a_cause(made_up: list[Rule], capsys: pytest.CaptureFixture[str]) -> None:
    from nanscan.cli.main import main

    assert main(["explain", "exp", "overflow"]) == 0
    out = capsys.readouterr().out
    assert out.index("NS201  exp overflow") < out.index("\n\nNS202  exp overflow")


def test_unknown_is_explained(nanscan) -> None:
    done = nanscan("explain", "unknown")
    assert done.returncode == 0
    assert done.stdout.splitlines() == causes.unknown_lines()


def test_a_wrong_name_is_a_usage_error(nanscan) -> None:
    done = nanscan("explain", "log", "of", "zerro")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "nanscan explain: error: RULE|CAUSE='log of zerro': no rule and no cause has that name;"
    )
    assert "'log of zero'" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_of_one_and_of_all(nanscan) -> None:
    one, every = (
        json.loads(nanscan("explain", "NS101", "--json").stdout),
        json.loads(nanscan("explain", "--json").stdout),
    )
    assert one == {"schema": 1, "rules": [causes.to_dict(LOG, FAMILIES)]}
    assert [rule["id"] for rule in every["rules"]] == [rule.id for rule in RULES]
    assert {rule["cause"] for rule in every["rules"]} == {rule.cause for rule in RULES}
    assert json.loads(nanscan("explain", "unknown", "--json").stdout) == {"schema": 1, "rules": []}


def test_the_page(nanscan) -> None:
    assert nanscan("explain", "--markdown").stdout == causes.page(RULES, FAMILIES)
    done = nanscan("explain", "--markdown", "NS101")
    assert done.returncode == 2
    assert "RULE|CAUSE='NS101' with --markdown: the page has all rules" in done.stderr
    assert nanscan("explain", "--markdown", "--json").returncode == 2


def test_needs_no_torch_and_no_rich(python) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['rich'] = None\n"
        "from nanscan.cli.main import main; sys.exit(main(['explain', *sys.argv[1:]]))"
    )
    for words in ([], ["NS101"], ["--json"], ["--markdown"]):
        done = python("-c", code, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "NS101" in done.stdout
