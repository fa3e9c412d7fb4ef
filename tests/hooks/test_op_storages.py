"""Which memory holds what: in-place and partial writes, views, other writers, reused addresses, empty factories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")
NAN = float("nan")


@pytest.fixture
def scanner() -> Iterator[Any]:
    with nanscan.enable(level="op", on_anomaly="record") as opened:
        yield opened
    nanscan.disable()


def first(scanner: Any, value: torch.Tensor) -> Any:
    nanscan.check(value, "value")
    return scanner.first


def test_in_place_op(scanner: Any) -> None:
    x = -torch.ones(4)
    x.log_()
    assert first(scanner, x).op == "aten::log_"


def test_in_place_op_on_a_bad_value_is_a_carrier(scanner: Any) -> None:
    x = torch.log(-torch.ones(4))
    x.mul_(2)
    assert first(scanner, x).op == "aten::log"


def test_partial_write_spoils_the_whole(scanner: Any) -> None:
    x = torch.ones(4, 4)
    x[1].sub_(2).log_()
    assert first(scanner, x * 2).op == "aten::log_"


def test_partial_write_leaves_the_other_view_clean(scanner: Any) -> None:
    x = torch.ones(4, 4)
    x[1].sub_(2).log_()
    nanscan.check(x[2:] * 2, "other rows")
    assert scanner.first is None


def test_partial_clean_write_does_not_clean_the_rest(scanner: Any) -> None:
    x = torch.log(-torch.ones(4, 4))
    x[1].fill_(0)
    assert first(scanner, x + 1).op == "aten::log"


def test_overwritten_as_a_whole_is_clean(scanner: Any) -> None:
    x = torch.log(-torch.ones(4))
    x.zero_()
    nanscan.check(x + 1, "value")
    assert scanner.first is None


def test_a_view_reads_its_base(scanner: Any) -> None:
    x = torch.log(-torch.ones(4, 4))
    assert first(scanner, x.t()[1:].exp()).op == "aten::log"


def test_out_argument(scanner: Any) -> None:
    out = torch.zeros(4)
    torch.log(-torch.ones(4), out=out)
    assert first(scanner, out).op == "aten::log"


def test_foreach(scanner: Any) -> None:
    xs = [torch.ones(2), -torch.ones(3)]
    torch._foreach_log_(xs)
    assert first(scanner, xs[1]).op == "aten::_foreach_log_"


@pytest.mark.parametrize("through", ["data", "detach"])
def test_write_that_does_not_raise_the_version(scanner: Any, through: str) -> None:
    x = torch.ones(4, requires_grad=True)
    other = x.data if through == "data" else x.detach()
    other.mul_(-1).log_()
    assert first(scanner, x * 1).op == "aten::log_"


def test_storage_first_seen_as_zeros(scanner: Any) -> None:
    bad = torch.log(-torch.ones(2, 3))
    out = torch.zeros(4, 3).index_add(0, torch.tensor([1, 2]), bad)
    assert first(scanner, out).op == "aten::log"


def test_numpy_writes_behind_the_dispatcher(scanner: Any) -> None:
    x = torch.ones(4) * 2  # written here
    x.numpy()[1] = np.nan
    event = first(scanner, x + 1)
    assert (event.role, event.reader) == ("external", "aten::add")
    assert "# written here" in Path(__file__).read_text().splitlines()[int(event.last_clean.rsplit(":", 1)[1]) - 1]
    assert any("no observed write in between" in text for text in event.evidence)


def test_uninitialised_memory(scanner: Any) -> None:
    x = torch.empty(4)
    x.numpy()[:] = np.nan
    event = first(scanner, x * 2)
    assert event.role == "uninitialised"


def test_uninitialised_memory_that_is_filled_first(scanner: Any) -> None:
    x = torch.empty(4)
    x.fill_(1)
    nanscan.check(x * 2, "value")
    x = torch.empty(4, 4)
    for row in x:
        row.copy_(torch.ones(4))
    nanscan.check(x.sum(), "value")
    assert scanner.first is None


def test_freed_and_reused_memory(scanner: Any) -> None:
    for _ in range(200):
        bad = torch.log(-torch.ones(64))
        del bad
        nanscan.check(torch.ones(64) * 2, "value")
    assert scanner.first is None


def test_inference_tensors(scanner: Any) -> None:
    with torch.inference_mode():
        x = torch.ones(4)
        x[1:3].sub_(2).log_()
        assert first(scanner, x * 2).op == "aten::log_"


def test_rows_of_an_empty_cache_that_nobody_filled(scanner: Any) -> None:
    cache = torch.empty(3, 4)
    cache.numpy()[:] = np.nan  # garbage
    cache[0] = torch.ones(4)
    nanscan.check(cache[0] * 2, "the filled row")
    assert scanner.first is None
    event = first(scanner, cache * torch.zeros(3, 1))
    assert (event.role, event.reader) == ("uninitialised", "aten::mul")
