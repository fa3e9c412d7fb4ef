"""Which calls the source has between the line that wrote and the line that read."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanscan.origin.between import calls_between

pytest.importorskip("torch")  # so that the names of the sources below can be looked up

HEAD = """
import ctypes, functools, math, operator, time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
lib = ctypes.CDLL(None)
raw = operator.itemgetter  # not Python code, and of the standard library
memset = lib.memset
def helper(x): ...
wrapped = functools.wraps(memset)(lambda *a: memset(*a))
"""


@pytest.fixture
def between(tmp_path: Path) -> Iterator[Callable[[str], str | None]]:
    """between(source): the source has its lines marked A (written) and B (read). Lines are told as from A on."""
    names = []

    def ask(source: str) -> str | None:
        text = HEAD + textwrap.dedent(source)
        path = tmp_path / f"between_source_{len(names)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        names.append(path.stem)
        spec.loader.exec_module(module)
        lines = text.splitlines()
        a, b = (next(i for i, line in enumerate(lines, 1) if line.endswith(mark)) for mark in ("# A", "# B"))
        found = calls_between(f"{path}:{a}", f"{path}:{b}")
        return None if found is None else re.sub(r"line (\d+)", lambda m: f"line A{int(m[1]) - a:+d}", found)

    yield ask
    for name in names:
        del sys.modules[name]


def function(body: str) -> str:
    return "def f(x, out, n, self=None, call=None):\n" + textwrap.indent(textwrap.dedent(body), "    ")


@pytest.mark.parametrize(
    "call",
    [
        "lib.scale_into(x, out)", "memset(out, 0, n)", "np.copyto(out, x)", "wrapped(out, 0, n)",
        "ctypes.memset(out, 0, n)", "helper(out)", "self.ext.scale_into(x, out)", "call(out)", "unknown.thing(out)",
    ],
)  # fmt: skip
def test_listed(between: Callable[[str], str | None], call: str) -> None:
    found = between(function(f"out = torch.zeros(n)  # A\n{call}\nreturn x + out  # B"))
    assert found == f"in between the source calls: {call} (line A+1)"


@pytest.mark.parametrize(
    "call",
    [
        "torch.relu(x)", "F.relu(x)", "nn.Linear(2, 2)", "torch.nn.functional.relu(x)", "print(x)", "len(x)",
        "x.add_(1)", "out.view(2).copy_(x)", "math.sqrt(n)", "time.time()", "functools.partial(print)",
        "sorted(x)", "n + 1",
    ],
)  # fmt: skip
def test_left_out(between: Callable[[str], str | None], call: str) -> None:
    assert between(function(f"out = torch.zeros(n)  # A\n{call}\nreturn x + out  # B")) is None


def test_what_is_certain_comes_before_what_is_not(between: Callable[[str], str | None]) -> None:
    body = """
    out = torch.zeros(n)  # A
    self.one(out)
    self.two(out)
    self.three(out)
    memset(out, 0, n)
    return x + out  # B
    """
    assert between(function(body)) == (
        "in between the source calls: self.one(out) (line A+1), self.two(out) (line A+2), memset(out, 0, n) (line A+4) "
        "and 1 more"
    )


def test_calls_on_the_two_lines_count_where_they_are_certain(between: Callable[[str], str | None]) -> None:
    found = between(function("helper(memset(out.zero_(), 0, n))  # A\nreturn helper(x + out)  # B"))
    assert found == "in between the source calls: memset(out.zero_(), 0, n) (line A+0)"


def test_a_nested_call_is_part_of_the_call_around_it(between: Callable[[str], str | None]) -> None:
    found = between(function("out = torch.zeros(n)  # A\nself.b(self.a(out))\nreturn x + out  # B"))
    assert found == "in between the source calls: self.b(self.a(out)) (line A+1)"


def test_functions_defined_in_between_do_not_run_there(between: Callable[[str], str | None]) -> None:
    body = """
    out = torch.zeros(n)  # A
    def later():
        memset(out, 0, n)
    g = lambda: memset(out, 0, n)
    return x + out  # B
    """
    assert between(function(body)) is None


def test_written_in_another_function(between: Callable[[str], str | None]) -> None:
    source = """
    def forward(self, x):
        return reader(torch.zeros(3))  # A

    def reader(h):
        memset(h, 0, 3)
        return h + 1  # B
    """
    assert between(source) == "before the read reader calls: memset(h, 0, 3) (line A+3)"


def test_read_in_a_function_that_was_called_after_the_write(between: Callable[[str], str | None]) -> None:
    source = """
    class Net:
        def forward(self, x):
            out = torch.zeros(3)  # A
            self.raw(out)
            return self.join(x, out)

    class Join:
        def forward(self, x, out):
            return x + out  # B
    """
    assert between(source) == ("after the write Net.forward calls: self.raw(out) (line A+1)")


def test_a_loop_says_nothing(between: Callable[[str], str | None]) -> None:
    body = """
    for _ in range(n):
        x + out  # B
        memset(out, 0, n)
        out = torch.zeros(n)  # A
    """
    assert between(function(body)) is None


def test_a_parameter_hides_a_name_of_the_module(between: Callable[[str], str | None]) -> None:
    found = between("def f(x, torch):\n    out = x * 1  # A\n    torch.relu_into(out)\n    return x + out  # B\n")
    assert found == "in between the source calls: torch.relu_into(out) (line A+1)"


def test_a_script_outside_every_function(between: Callable[[str], str | None]) -> None:
    found = between("x = torch.zeros(4)  # A\nnp.copyto(x.numpy(), 0.0)\ny = x + 1  # B\n")
    assert found == "in between the source calls: np.copyto(x.numpy(), 0.0) (line A+1)"


def test_a_long_call_is_cut(between: Callable[[str], str | None]) -> None:
    found = between(function(f"out = torch.zeros(n)  # A\nmemset(out, {'1 + ' * 60} 0)\nreturn x + out  # B"))
    assert found.endswith(" ... (line A+1)")
    assert len(found) < 120


@pytest.mark.parametrize("place", ["", "nowhere.py:3", "<string>:1", f"{__file__}:99999", "no number"])
def test_source_that_cannot_be_read_says_nothing(place: str) -> None:
    assert calls_between(place, place) is None
    assert calls_between(f"{__file__}:20", place) is None


def test_source_that_is_not_python_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n  x\n  y\n")
    assert calls_between(f"{path}:2", f"{path}:3") is None


def test_nothing_is_called_while_looking(between: Callable[[str], str | None]) -> None:
    source = """
    class Loud:
        def __getattr__(self, name): raise SystemExit(name)
    loud = Loud()
    def f(x):
        out = x * 1  # A
        loud.thing(out)
        return x + out  # B
    """
    assert between(source) == "in between the source calls: loud.thing(out) (line A+1)"
