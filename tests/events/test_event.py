"""Event as plain data."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from nanscan.events import Event


def same(a, b):
    """Equality that takes NaN for NaN."""
    return json.dumps(a.to_dict()) == json.dumps(b.to_dict())


def test_dict_and_back_through_strict_json(make_event):
    event = make_event(last_clean="a", tensor="x")
    text = json.dumps(event.to_dict(), allow_nan=False)
    back = Event.from_dict(json.loads(text))
    assert same(event, back)
    assert back.shape == (4, 8)
    assert math.isinf(back.stats.max)
    assert math.isnan(back.inputs["input 0"].mean)
    assert '"max": "inf"' in text


def test_fields_of_a_newer_writer_are_left_out(make_event):
    assert same(Event.from_dict({**make_event().to_dict(), "colour": "red"}), make_event())


@pytest.mark.parametrize("name", ["severity", "kind", "role", "phase", "tensor_kind"])
def test_unknown_words_are_refused_by_name(make_event, name):
    with pytest.raises(ValueError, match=rf"Event\({name}='odd'\): use one of "):
        make_event(**{name: "odd"})


def test_frozen(make_event):
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_event().step = 3


def test_one_line(make_event):
    assert str(make_event()) == (
        "error: both (origin) in forward, step 1843: blocks.2.attn (Attention), 3 of 32 elements"
    )
    health = make_event(severity="warning", kind="explosion", evidence=("gradient norm grew 40x",), rank=3)
    assert str(health) == (
        "warning: explosion in forward, step 1843, rank 3: blocks.2.attn (Attention), gradient norm grew 40x"
    )


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "blocks.2.attn (Attention)"),
        ({"module": "", "module_type": "Net"}, "Net"),
        ({"module": None, "phase": "backward"}, "the loss code"),
        ({"module": None}, "code outside every module"),
        ({"module": None, "phase": "optimizer", "tensor": "fc.weight"}, "fc.weight at the optimizer's step"),
        (
            {"module": None, "phase": "optimizer", "tensor": "a", "tensor_kind": "gradient"},
            "a.grad at the optimizer's step",
        ),
        ({"module": None, "phase": "backward", "tensor": "a"}, "the loss code or a compiled backward"),
        ({"tensor": "scores", "tensor_kind": "check"}, "check 'scores' in blocks.2.attn (Attention)"),
        ({"module": None, "tensor": "loss", "tensor_kind": "check"}, "check 'loss'"),
        ({"role": "external", "tensor": "input 0"}, "input 0 read by blocks.2.attn (Attention)"),
    ],
)
def test_place(make_event, fields, place):
    assert make_event(**fields).place == place


def test_the_key_tells_sites_apart_not_values(make_event):
    assert make_event().key == make_event(step=9, kind="nan", stats=None).key
    assert make_event().key != make_event(module="other").key
    assert make_event().key != make_event(kind="explosion").key
