"""Rules see things they were not made for: they stay silent or say something whole, and never raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanscan.record import TensorStats
from nanscan.why import CAUSES, RULES, Rule, Situation, Verdict, explain

settings.register_profile("rules", deadline=None, suppress_health_check=list(HealthCheck))
QUIET = settings.get_profile("rules")
ONE_INF = TensorStats(
    numel=2, nan=0, posinf=0, neginf=1, zero=1, subnormal=0, min=0.0, max=0.0, mean=0.0, std=0.0, norm=0.0, absmax=0.0,
    first_bad_index=0, dtype="float32",
)  # fmt: skip
EMPTY = [
    Situation(op=op, phase=phase, role="origin", kinds=kinds, inputs=inputs)
    for op in (None, "", "aten::log", "aten::add_", "LogBackward0", "torch::autograd::AccumulateGrad")
    for phase in ("data", "forward", "backward", "optimizer")
    for kinds in ((), ("nan",), ("+inf",), ("-inf", "nan"))
    for inputs in ((), (ONE_INF,))
]


def check(rule: Rule, situation: Situation) -> None:
    """What it saw, if anything, is a tuple of sentences."""
    seen = rule.when(situation)
    if seen is None:
        return
    assert isinstance(seen, tuple), rule.id
    assert seen, f"{rule.id} applies, and says nothing of what it saw"
    for text in seen:
        assert isinstance(text, str), rule.id
        assert text.strip() == text, rule.id
        assert text, rule.id
        assert "\n" not in text, rule.id


def check_verdict(verdict: Verdict) -> None:
    """It keeps to the vocabulary, and its parts fit together."""
    assert verdict.cause in CAUSES
    assert set(verdict.others) <= set(CAUSES) - {verdict.cause, "unknown"}
    assert len(set(verdict.others)) == len(verdict.others)
    assert (verdict.rule is None) == (verdict.cause == "unknown")
    if verdict.rule is not None:
        assert verdict.evidence
        assert verdict.remedy


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_where_next_to_nothing_is_known(rule: Rule) -> None:
    for situation in EMPTY:
        check(rule, situation)


def test_a_verdict_where_next_to_nothing_is_known() -> None:
    for situation in EMPTY:
        check_verdict(explain(situation))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_on_its_own_ops(rule: Rule, any_situation: Callable[..., st.SearchStrategy[Situation]]) -> None:
    @settings(QUIET, max_examples=10)
    @given(any_situation(tuple(sorted(rule.ops))))
    def on_any(situation: Situation) -> None:
        check(rule, situation)

    on_any()


def test_all_rules_on_anything(any_situation: Callable[..., st.SearchStrategy[Situation]]) -> None:
    @settings(QUIET, max_examples=250)
    @given(any_situation())
    def on_any(situation: Situation) -> None:
        for rule in RULES:  # those of other ops too
            check(rule, situation)
        check_verdict(explain(situation))

    on_any()
