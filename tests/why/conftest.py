"""Situations for rules, made up at random: anything may be missing, numbers may be anything."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st

from nanscan.record import DType, TensorStats
from nanscan.why import RULES, Arg, Past, Situation, rules

OPS = sorted({op for rule in RULES for op in rule.ops} | {"log", "div", "mul", "add", "pow", "softmax", "where", "odd"})
PHASES = ("data", "forward", "backward", "optimizer")
KINDS = ((), ("nan",), ("+inf",), ("-inf",), ("+inf", "-inf"), ("nan", "+inf"), ("nan", "+inf", "-inf"))
ROLES = ("origin", "carrier", "absorbed", "external", "uninitialised")


def asked_names() -> list[str]:
    """What may be the name of an argument in a rule's predicate: every identifier that stands there as a string."""
    found = {"odd"}
    for path in Path(rules.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                texts = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and text.isidentifier()}
    return sorted(name for name in found if name not in OPS and not name.endswith("Backward"))


ARGS = asked_names()
FLAGS = ("lost", "trap", "scaling", "constant", "compiled")
VALUES = (0.0, 1.0, -1.0, -0.0, 0.5, 2.0, 1e-8, 65504.0, 3.4e38, math.inf, -math.inf, math.nan, 5e-324, 1.7e308)
NUMBERS = st.sampled_from(VALUES) | st.floats()


def make_stats(random: Random) -> TensorStats:
    """Counts that add up, in any element type; the floats need not fit together."""
    nan, posinf, neginf, zero, subnormal, rest = random.choices([0, 0, 1, 5], k=6)
    low, high, mean, std, norm, absmax = random.choices(VALUES, k=6)
    bad = nan + posinf + neginf
    return TensorStats(
        numel=bad + zero + subnormal + rest, nan=nan, posinf=posinf, neginf=neginf, zero=zero, subnormal=subnormal,
        min=low, max=high, mean=mean, std=std, norm=norm, absmax=absmax, first_bad_index=0 if bad else None,
        dtype=random.choice([dtype.torch_name for dtype in DType]),
    )  # fmt: skip


# Made once and drawn whole: hypothesis would take minutes over a number at a time.
STATS = st.sampled_from([make_stats(Random(seed)) for seed in range(400)])
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (0, 4), (1, 1, 1), (2, 3, 4, 5)])
MAYBE = st.none() | STATS


@st.composite
def arguments(draw: Callable) -> dict[str, Arg]:
    """By name: numbers, several numbers, tensors of which the whole, a part or nothing is known."""
    found = {}
    for name in draw(st.lists(st.sampled_from(ARGS), unique=True, max_size=4)):
        value = draw(st.one_of(st.none(), st.none(), NUMBERS, st.lists(NUMBERS, max_size=2).map(tuple)))
        tensor = value is None
        whole, part, shape = (draw(MAYBE), draw(MAYBE), draw(st.none() | SHAPES)) if tensor else (None, None, None)
        found[name] = Arg(name, value=value, whole=whole, part=part, shape=shape)
    return found


@st.composite
def situations(draw: Callable, ops: tuple[str, ...] = (), depth: int = 1) -> Situation:
    """Any situation; of these ops or nodes (bare names, as in Rule.ops) if any are given."""
    name = draw(st.sampled_from(ops or OPS))
    node = name if name.endswith("Backward") else f"{name.title().replace('_', '')}Backward"
    real = [f"{name}0"] if name == node else [f"aten::{name}", f"aten::{name}_", f"mylib::{name}"]
    return Situation(
        op=draw(st.sampled_from(real if ops else [*real, f"{node}0", "OddBackward", None])),
        inner=draw(st.sampled_from([None, None, None, real[0], "aten::div"])),
        phase=draw(st.sampled_from(PHASES)),
        role=draw(st.sampled_from(ROLES)),
        kinds=draw(st.sampled_from(KINDS)),
        out=draw(MAYBE),
        args=draw(arguments()),
        saved=draw(arguments()),
        inputs=tuple(draw(st.lists(STATS, max_size=2))),
        made_of=tuple(draw(st.lists(situations((), depth - 1), max_size=2))) if depth else (),
        went=tuple(draw(st.lists(st.sampled_from(OPS), max_size=2))),
        tensor=draw(st.sampled_from([None, "fc.weight", "norm.running_var", "input 0", "the output"])),
        last_clean=draw(st.sampled_from([None, "a", "train.py:8"])),
        past=_past(draw(st.lists(st.sampled_from(VALUES), max_size=8))),
        **dict.fromkeys(draw(st.sets(st.sampled_from(FLAGS), max_size=3)), True),
    )


def _past(sizes: list[float]) -> Past:
    return Past(tuple(range(len(sizes))), tuple(sizes))


@pytest.fixture(scope="session")
def any_situation() -> Callable[..., st.SearchStrategy[Situation]]:
    """any_situation(ops=()): a strategy."""
    return situations
