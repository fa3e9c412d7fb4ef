"""Wrong arguments and calls: each error names the argument, the value found and the way out."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import nanscan


def says(*words):
    """A pattern for pytest.raises: the words, in this order, anything between them."""
    return "(?s)" + ".*".join(map(re.escape, words))


ENABLE_ROWS = [
    pytest.param({"model": [1.0]}, TypeError, ("model=[1.0]", "list", "pass the model itself"), id="a-list"),
    pytest.param({"model": nn.Linear}, TypeError, ("model=", "Linear", "type", "pass the model itself"), id="a-class"),
    pytest.param({"level": "deep"}, ValueError, ("level='deep'", "'module'"), id="unknown-level"),
    pytest.param({"level": 3}, ValueError, ("level=3", "'module'"), id="level-not-a-string"),
    pytest.param({"on_anomaly": "ignore"}, ValueError, ("on_anomaly='ignore'", "'record'", "callable"), id="policy"),
    pytest.param({"every": 0}, ValueError, ("every=0", "at least 1"), id="every-0"),
    pytest.param({"every": -1}, ValueError, ("every=-1", "at least 1"), id="every-negative"),
    pytest.param({"every": 2.0}, TypeError, ("every=2.0", "float", "int"), id="every-a-float"),
    pytest.param({"every": True}, TypeError, ("every=True", "bool", "int"), id="every-a-bool"),
    pytest.param({"max_events": 0}, ValueError, ("max_events=0", "at least 1"), id="max-events"),
    pytest.param({"schedule": 5}, TypeError, ("schedule=5", "int", "callable"), id="schedule"),
    pytest.param({"clock": "wall"}, ValueError, ("clock='wall'", "'auto'", "'manual'"), id="clock"),
    pytest.param({"skip": 5}, TypeError, ("skip=5", "int", "globs"), id="skip-a-number"),
    pytest.param({"skip": [nn.ReLU()]}, TypeError, ("skip", "ReLU instance", "class"), id="skip-an-instance"),
    pytest.param({"include": [int]}, TypeError, ("include", "int", "globs"), id="include-another-class"),
    pytest.param({"growth": {"treshold": 3}}, TypeError, ("growth=", "treshold", "GrowthWatch"), id="growth-misspelt"),
    pytest.param({"growth": {"threshold": -3}}, ValueError, ("threshold=-3", "positive"), id="growth-wrong-value"),
    pytest.param({"dir": 5}, TypeError, ("dir=5", "int", "path"), id="dir-a-number"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "words"), ENABLE_ROWS)
def test_enable_refuses(arguments, kind, words, hooks_of):
    model = nn.Linear(2, 2)
    with pytest.raises(kind, match=says(*words)):
        nanscan.enable(**{"model": model, **arguments})
    assert hooks_of(model) == []


def test_enable_refuses_growth_that_is_no_mapping():
    with pytest.raises(TypeError, match=says("growth=", "'wild'")):
        nanscan.enable(nn.Linear(2, 2), growth="wild")


def test_enable_refuses_a_dir_below_a_regular_file(tmp_path, hooks_of):
    (tmp_path / "taken").write_text("a file")
    model = nn.Linear(2, 2)
    with pytest.raises(
        ValueError, match=says("dir=", str(tmp_path / "taken" / "log"), "cannot be written", "dir=None")
    ):
        nanscan.enable(model, dir=tmp_path / "taken" / "log")
    assert hooks_of(model) == []


def test_a_refused_model_leaves_nothing_behind(tmp_path, hooks_of):
    # GIVEN a model that is watched already
    model = nn.Sequential(nn.Linear(2, 2))
    nanscan.enable(model)
    before = hooks_of(model)
    # WHEN it is to be watched once more, with a log
    with pytest.raises(nanscan.NanscanError, match="already watched"):
        nanscan.enable(model, dir=tmp_path)
    # THEN neither a hook nor a log file says so
    assert hooks_of(model) == before
    assert list(tmp_path.iterdir()) == []


def test_what_a_schedule_raises_in_enable_is_the_users_own_error(hooks_of):
    model = nn.Linear(2, 2)
    with pytest.raises(KeyError, match="no such step"):
        nanscan.enable(model, schedule=lambda step: {}["no such step"])
    assert hooks_of(model) == []


def test_calls_after_close():
    scanner = nanscan.enable(nn.Linear(2, 2))
    scanner.close()
    with pytest.raises(nanscan.NanscanError, match=says("close()", "already closed", "nanscan.enable(model)")):
        scanner.close()
    with pytest.raises(nanscan.NanscanError, match=says("step()", "already closed", "nanscan.enable(model)")):
        scanner.step()


def test_a_closed_scanner_can_still_be_read():
    model = nn.Linear(2, 2)
    scanner = nanscan.enable(model)
    with torch.no_grad():
        model(torch.ones(1, 2))
    scanner.close()
    scanner.poll()
    scanner.flush()
    assert scanner.events == ()
    assert scanner.first is None
    assert scanner.stats["batches"] == 1
    assert scanner.coverage["modules"] == {"": "Linear"}
    assert scanner.report().startswith("nanscan: healthy.")


CHECK_ROWS = [
    pytest.param((5, "loss"), ("tensor=5", "torch.Tensor", "int"), id="no-tensor"),
    pytest.param((None, "loss"), ("tensor=None", "torch.Tensor", "NoneType"), id="none"),
    pytest.param((torch.ones(1), ""), ("name=''", "non-empty string", "'loss'"), id="no-name"),
    pytest.param((torch.ones(1), 7), ("name=7", "non-empty string", "'loss'"), id="name-a-number"),
]


@pytest.mark.parametrize(("arguments", "words"), CHECK_ROWS)
def test_check_refuses(arguments, words):
    model = nn.Linear(2, 2)
    scanner = nanscan.enable(model)
    with pytest.raises(TypeError, match=says(*words)):
        nanscan.check(*arguments)
    assert scanner.stats["steps"] == 0
    assert not scanner.closed


SCAN_ROWS = [
    pytest.param(7, ("tensor=7", "torch.Tensor", "int"), id="a-number"),
    pytest.param([1.0], ("tensor=[1.0]", "torch.Tensor", "list"), id="a-list"),
    pytest.param(torch.arange(3), ("int",), id="an-integer-tensor"),
    pytest.param(torch.ones(3, dtype=torch.bool), ("bool",), id="a-bool-tensor"),
    pytest.param(torch.ones(3, 3).to_sparse(), ("sparse",), id="a-sparse-tensor"),
    pytest.param(torch.ones(3, device="meta"), ("meta",), id="a-meta-tensor"),
]


@pytest.mark.parametrize(("value", "words"), SCAN_ROWS)
def test_scan_refuses(value, words):
    with pytest.raises(TypeError, match="(?i)" + says(*words)[4:]):
        nanscan.scan(value)


ALLOW_ROWS = [
    pytest.param((5,), TypeError, ("site_or_op=5", "int", "module name"), id="site-a-number"),
    pytest.param((nn.Linear,), TypeError, ("site_or_op=", "type", "module name"), id="site-a-class"),
    pytest.param(("mask", "ninf"), ValueError, ("'ninf'", "'nan'", "'-inf'", "'explosion'"), id="unknown-kind"),
    pytest.param(("mask", ["nan", "zero"]), ValueError, ("'zero'", "'nan'"), id="one-unknown-kind"),
    pytest.param(("mask", []), ValueError, ("nothing", "'nan'"), id="no-kind"),
    pytest.param(("mask", 5), TypeError, ("kinds=5", "int", "'nan'"), id="kinds-a-number"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), ALLOW_ROWS)
def test_allow_refuses(arguments, kind, words):
    with pytest.raises(kind, match=says(*words)):
        nanscan.allow(*arguments)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'nanscan' has no attribute 'enabel'"):
        _ = nanscan.enabel
