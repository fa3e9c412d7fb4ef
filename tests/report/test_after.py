"""The rows "after" and "before": only what is so, and within the block's limits."""

from __future__ import annotations

import pytest

from nanscan.events import Aftermath
from nanscan.report import first_culprit_lines

HIDDEN = "Trainer logs hide it: logging_nan_inf_filter=True replaces NaN losses in the log"


def row(lines, name):
    """The text of a row, its lines put together."""
    text, inside = "", False
    for line in lines[1:]:
        inside = line.startswith(f"  {name:<8}") or (inside and line.startswith(" " * 10))
        text += f" {line[10:]}" if inside else ""
    return text.strip()


@pytest.mark.parametrize(
    ("after", "text"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"ops": 41}, "41 later ops bad in the same step", id="ops"),
        pytest.param(
            {"ops": 1, "gradients": 2, "n_gradients": 8},
            "1 later op and 2/8 parameter gradients bad in the same step",
            id="an op and gradients",
        ),
        pytest.param(
            {"gradients": 12, "n_gradients": 12, "spread_from": 1, "spread_to": 12, "parameters": 12, "last_clean": 57},
            "12/12 parameter gradients bad in the same step; clipping spread it from 1 to 12 of 12 gradients; "
            "12 parameters left bad; last clean step: 57",
            id="clipping by NaN",
        ),
        pytest.param(
            {"gradients": 1, "n_gradients": 12, "zeroed": 11, "parameters": 1},
            "1/12 parameter gradients bad in the same step; clipping by an infinite norm has set the other 11 "
            "gradients to 0; 1 parameter left bad",
            id="clipping by Inf",
        ),
        pytest.param(
            {"zeroed": 1}, "clipping by an infinite norm has set the other gradient to 0", id="of two gradients"
        ),
        pytest.param(
            {"parameters": 3, "buffers": 2, "last_clean": 0},
            "3 parameters and 2 buffers left bad; last clean step: 0",
            id="running statistics",
        ),
        pytest.param({"last_clean": 3}, "", id="nothing was written"),
        pytest.param({"skipped": True}, "the step was skipped", id="a scale that is not known"),
        pytest.param(
            {"skipped": True, "scale_from": 65536.0, "scale_to": 32768.0},
            "the step was skipped; the loss scale goes from 65536 to 32768",
            id="skipped",
        ),
        pytest.param(
            {"skipped": True, "scale_from": 0.000244140625, "scale_to": 0.0001220703125, "skips_in_a_row": 17},
            "the step was skipped; the loss scale has collapsed to 0.000122 after 17 skips in a row",
            id="collapsed",
        ),
        pytest.param(
            {"skipped": True, "skips_in_a_row": 17},
            "the step was skipped; the loss scale has collapsed after 17 skips in a row",
            id="collapsed, scale not known",
        ),
        pytest.param({"later_steps": 1}, "1 later step bad because of it, not shown", id="one more step"),
    ],
)
def test_only_what_is_so(make_event, after, text):
    assert row(first_culprit_lines(make_event(), after=Aftermath(**after)), "after") == text


def test_one_parameter_that_the_update_spoiled_is_the_culprit_itself(make_event):
    event = make_event(phase="optimizer", tensor="fc.weight", module=None)
    lines = first_culprit_lines(event, after=Aftermath(parameters=1, last_clean=4))
    assert row(lines, "after") == "last clean step: 4"


def test_a_log_that_hides_it_is_named(make_event):
    assert row(first_culprit_lines(make_event(hidden_by=HIDDEN)), "after") == HIDDEN
    lines = first_culprit_lines(make_event(hidden_by=HIDDEN), after=Aftermath(later_steps=2))
    assert row(lines, "after") == f"2 later steps bad because of it, not shown; {HIDDEN}"


def test_the_module_before_stands_behind_the_history(make_event):
    near = "blocks.2 (Block) before it was finite, max|x| 31.2"
    assert row(first_culprit_lines(make_event(clean_before=near)), "before") == near
    lines = first_culprit_lines(make_event(clean_before=near), history=[1.0, 1.0, 1.0])
    assert row(lines, "before") == f"max|x| last 3 steps: 1 1 1  (flat, so not a slow overflow); {near}"


def test_a_collapse_is_said_once(make_event):
    said = "the loss scaler has skipped 17 steps in a row: its scale has collapsed"
    event = make_event(evidence=("a fact", said))
    assert row(first_culprit_lines(event), "why") == "a fact"


def test_all_of_it_stays_within_the_block(make_event):
    event = make_event(
        hidden_by=HIDDEN, clean_before="layers.16 (Block) before it was finite, max|x| 31.2", last_clean="layers.3",
        source="model.py:12  x = x / x.norm()", cause="division by zero",
    )  # fmt: skip
    after = Aftermath(
        outputs=4, gradients=290, n_gradients=290, parameters=290, buffers=12, spread_from=1, spread_to=290,
        last_clean=1842, later_steps=9310,
    )  # fmt: skip
    lines = first_culprit_lines(event, history=[31.2, 30.9, 31.5, 31.1, 30.8], after=after)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("  next    ")


def test_an_older_or_newer_log_is_read():
    line = {"outputs": 2, "last_clean": None, "of a later writer": "x", "scale_to": "nan"}
    assert Aftermath.from_dict(line) == Aftermath(outputs=2)
