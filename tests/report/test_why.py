"""What the block says of a cause: the rule that named it, what shows it, what else fits, and where it is explained."""

from __future__ import annotations

import json

import pytest

from nanscan.events import Aftermath, Event
from nanscan.report import decide_culprit, first_culprit_lines, warning_lines

HELD = "output[0] holds 65536 NaN among 268435456 elements"
SAW = "log was given 3 zeros among 12 elements, and log(0) is -Inf"
CLEAN = "finite when last written at a, non-finite when read at b, no observed write in between"


@pytest.fixture
def explained(make_event):
    """An event that a rule has named."""

    def make(**fields):
        base = {
            "op": "aten::log", "cause": "log of zero", "rule": "NS101", "others": ("0 * inf", "inf - inf"),
            "evidence": (HELD, SAW, "the value reached the loss"),
            "remedy": "torch.log(x.clamp_min(torch.finfo(x.dtype).tiny))", "chain": (),
        }  # fmt: skip
        return make_event(**{**base, **fields})

    return make


def row(lines: list[str], name: str) -> str:
    """The text of one row, on one line."""
    named, said = "", []
    for line in lines[1:]:
        named = line[2:10].strip() or named
        said += [line[10:]] if named == name else []
    return " ".join(said)


def test_a_rule_is_named_shown_and_explained(explained) -> None:
    assert first_culprit_lines(explained()) == [
        "nanscan: FIRST NON-FINITE  step 1843  forward",
        "  where   layers.17.attn  Attention  aten::log  output[0]  bf16 (8, 32, 1024, 1024)",
        "  value   65536 NaN of 268 M (0.024 %), first at [0, 0, 0, 1023]; the rest max|x| 31.2",
        "  inputs  all finite, max|x| 4.5",
        "  why     log of zero (NS101); log was given 3 zeros among 12 elements, and log(0) is -Inf; the",
        "          value reached the loss; also fits: 0 * inf, inf - inf",
        "  next    torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)); nanscan explain NS101 shows an example",
    ]


def test_a_cause_without_a_rule(explained) -> None:
    lines = first_culprit_lines(explained(rule=None, others=(), evidence=(HELD,)))
    assert row(lines, "why") == "log of zero"
    assert row(lines, "next") == "torch.log(x.clamp_min(torch.finfo(x.dtype).tiny))"


def test_a_rule_without_a_remedy(explained) -> None:
    assert row(first_culprit_lines(explained(remedy=None)), "next") == "nanscan explain NS101 says what to do"


def test_unknown_gives_facts_and_no_guess(explained) -> None:
    event = explained(cause="unknown", rule=None, others=("torch.where hides a bad branch",), remedy=None)
    why = row(first_culprit_lines(event), "why")
    assert why == f"{SAW}; the value reached the loss"


def test_nothing_is_known(explained) -> None:
    lines = first_culprit_lines(explained(cause="unknown", rule=None, others=(), evidence=(HELD,)))
    assert not any(line.startswith("  why") for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HELD, id="value"),
        pytest.param("its inputs were finite, max|x| 4.5", id="inputs, finite"),
        pytest.param("input 1 holds 4 non-finite values", id="inputs, bad"),
        pytest.param(CLEAN, id="clean"),
        pytest.param("3 later module outputs are bad in the same step", id="after, outputs"),
        pytest.param("bad parameter gradients after it: 3", id="after, gradients"),
    ],
)
def test_what_other_rows_give_is_left_out(explained, text: str) -> None:
    assert row(first_culprit_lines(explained(evidence=(text,), others=())), "why") == "log of zero (NS101)"


@pytest.mark.parametrize(
    "text",
    [
        "mul was given 300 and 300, its inputs were finite, max|x| 300",
        "self holds 3 zeros among 268435456 elements",
        "softmax was given a row of non-finite values",
    ],
)
def test_what_a_rule_saw_stays(explained, text: str) -> None:
    assert row(first_culprit_lines(explained(evidence=(text,), others=())), "why") == f"log of zero (NS101); {text}"


def test_what_shows_it_need_not_come_second(explained) -> None:
    """Op level has no sentence with the counts."""
    lines = first_culprit_lines(explained(evidence=("log was given 0",), others=()))
    assert row(lines, "why") == "log of zero (NS101); log was given 0"


def test_what_else_fits_goes_before_a_line_of_another_row(explained) -> None:
    # GIVEN a block that needs all of its lines
    full = {
        "history": [1.0] * 5, "after": Aftermath(outputs=4, gradients=29, n_gradients=29, parameters=29, later_steps=9),
    }  # fmt: skip
    event = explained(
        source="train.py:8  entropy", last_clean="a", chain=("layer " * 30, "Net"), others=("division by zero",) * 5
    )
    plain = first_culprit_lines(explained(**{**vars_of(event), "others": ()}), **full)
    assert len(plain) == 12
    # WHEN more causes fit THEN no row gives anything up for them
    assert first_culprit_lines(event, **full) == plain
    assert decide_culprit(event).extra == (("why", f"also fits: {', '.join(event.others)}"),)


def vars_of(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in ("source", "last_clean", "chain", "others")}


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_the_command_is_never_cut(explained, n: int) -> None:
    remedy = ("clamp(x) " * 10).strip()  # as long as a rule's may be
    event = explained(
        others=("fractional power of a negative number",) * n, evidence=("word " * 5 * n,) * 3, source="x " * 9 * n,
        remedy=remedy, chain=("layers.17.attn",) * 8, last_clean="layer " * n,
    )  # fmt: skip
    lines = first_culprit_lines(event, history=[1.0] * 5, after=Aftermath(1, 2, 3, 4, 5, True))
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 100
    assert row(lines, "next") == f"{remedy}; nanscan explain NS101 shows an example"


def test_a_growth_before_it_and_the_rule(explained, make_event) -> None:
    grew = make_event(
        severity="warning", kind="explosion", step=1840, stats=None, evidence=("gradients grew",),
        remedy="lower the learning rate; then look at the site named here",
    )  # fmt: skip
    assert row(first_culprit_lines(explained(), warned=grew), "next") == (
        "lower the learning rate; then torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)); "
        "nanscan explain NS101 shows an example"
    )


def test_a_warning_of_health_names_its_rule(explained) -> None:
    event = explained(
        severity="warning", kind="explosion", stats=None, evidence=("gradients grew",), cause="lr too high",
        rule="NS503", others=("missing zero_grad",), remedy="lower the learning rate",
    )  # fmt: skip
    lines = warning_lines(event)
    assert row(lines, "why") == "lr too high (NS503); also fits: missing zero_grad"
    assert row(lines, "next") == "lower the learning rate; nanscan explain NS503 shows an example"


def test_json_has_the_rule_and_the_others(explained) -> None:
    data = json.loads(json.dumps(explained().to_dict(), allow_nan=False))
    assert (data["rule"], data["others"]) == ("NS101", ["0 * inf", "inf - inf"])
    assert Event.from_dict(data).others == ("0 * inf", "inf - inf")
    # A log of an older version says neither.
    older = {name: value for name, value in data.items() if name not in ("rule", "others")}
    assert (Event.from_dict(older).rule, Event.from_dict(older).others) == (None, ())
