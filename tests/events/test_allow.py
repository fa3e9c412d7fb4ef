"""allow(): what the user has declared to be expected."""

from __future__ import annotations

import pytest

from nanscan.events import AllowList


@pytest.mark.parametrize(
    ("pattern", "kinds", "covered"),
    [
        ("blocks.2.attn", None, True),
        ("blocks.*", None, True),
        ("blocks.2", None, False),
        ("x.weight", None, True),
        ("aten::log", None, True),
        ("*", ["nan", "inf"], True),
        ("*", ["nan", "+inf"], True),
        ("*", ["nan"], False),
        ("*", ["nan", "-inf"], False),
        ("*", "nan", False),
    ],
)
def test_patterns_and_kinds(make_event, pattern, kinds, covered):
    """The event holds NaN and +Inf: both have to be allowed."""
    allow = AllowList()
    handle = allow.allow(pattern, kinds)
    assert allow.permits_event(make_event(tensor="x.weight", op="aten::log")) is covered
    assert handle.count == covered


def test_health_kinds(make_event):
    allow = AllowList()
    allow.allow("blocks.*", "explosion")
    assert allow.permits_event(make_event(kind="explosion"))
    assert not allow.permits_event(make_event(kind="dead"))


def test_remove(make_event):
    allow = AllowList()
    first, second = allow.allow("*"), allow.allow("*")
    first.remove()
    first.remove()
    assert allow.permits_event(make_event())
    assert (first.count, second.count, len(allow)) == (0, 1, 1)
    second.remove()
    assert not allow.permits_event(make_event())


def test_the_root_and_the_place_outside_every_module(make_event):
    allow = AllowList()
    allow.allow("")
    assert allow.permits_event(make_event(module=""))
    assert not allow.permits_event(make_event(module=None))


def test_refusals():
    allow = AllowList()
    with pytest.raises(ValueError, match=r"allow\(kinds=...\): found 'NaN'; use some of 'nan', 'inf'"):
        allow.allow("a", ["NaN"])
    with pytest.raises(ValueError, match="found nothing"):
        allow.allow("a", [])
    with pytest.raises(TypeError, match="expected a string, found int; give a module name"):
        allow.allow(3)
