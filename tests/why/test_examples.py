"""Every rule's example goes wrong in the way that its rule says, and in no other."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import nanscan
from nanscan import Event, Scanner
from nanscan.backends import get
from nanscan.why import RULES, Rule

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the caller's shell decides, and what an example changed is put back."""
    for name in [name for name in os.environ if name.startswith("NANSCAN") and name != "NANSCAN_REQUIRE_NATIVE"]:
        monkeypatch.delenv(name)
    threads, dtype, state = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    nanscan.disable()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(state)


@pytest.fixture
def run() -> Callable[[Rule], tuple[Scanner, str]]:
    """run(rule): the scanner that its example leaves behind, and what it printed."""

    def call(rule: Rule) -> tuple[Scanner, str]:
        names: dict[str, object] = {"__name__": "__main__"}
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            exec(compile(rule.example, f"<example of {rule.id}>", "exec"), names)
        scanner = names["scanner"]
        assert isinstance(scanner, Scanner)
        return scanner, printed.getvalue()

    return call


def told(first: Event | None) -> str:
    """What a failure shows."""
    return "nothing was found" if first is None else f"{first}; {first.cause!r} of {first.rule}, others {first.others}"


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.companion], ids=lambda rule: rule.id)
def test_an_example_shows_its_rule_and_no_other(run: Callable[[Rule], tuple[Scanner, str]], rule: Rule) -> None:
    scanner, printed = run(rule)
    first = scanner.first
    assert first is not None
    assert (first.rule, first.cause) == (rule.id, rule.cause), told(first)
    assert first.others == (), told(first)
    assert first.remedy == rule.remedy
    assert scanner.closed
    assert f"{rule.cause} ({rule.id})" in " ".join(printed.split()), printed
    assert f"nanscan explain {rule.id} shows an example" in " ".join(printed.split()), printed


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.companion], ids=lambda rule: rule.id)
def test_an_example_shows_what_is_beside_the_cause(run: Callable[[Rule], tuple[Scanner, str]], rule: Rule) -> None:
    scanner, _ = run(rule)
    first = scanner.first
    assert first is not None
    assert rule.cause in first.others, told(first)
    assert first.rule in {one.id for one in RULES if not one.companion}, told(first)
    assert scanner.closed
