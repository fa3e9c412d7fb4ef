"""Strides: dense in any order, gaps, expansion, conj and neg views. first_bad is the logical index throughout."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from nanscan.record import RECORD_DTYPE, stats_from_record

LAYOUTS = {
    "transposed": lambda t: t.t(),
    "permuted": lambda t: t.reshape(6, 10, 50).permute(2, 0, 1),
    "channels_last": lambda t: t.reshape(3, 4, 25, 10).to(memory_format=torch.channels_last),
    "every_second_row": lambda t: t[::2],
    "every_third_column": lambda t: t[:, 1::3],
    "column": lambda t: t[:, 7],
    "inner_block": lambda t: t[5:40, 3:31],
    "transposed_block": lambda t: t[5:40, 3:31].t(),
    "expanded_rows": lambda t: t[3:4].expand(70, -1),
    "expanded_columns": lambda t: t[:, 2:3].expand(-1, 70),
    "expanded_middle": lambda t: t.unsqueeze(1).expand(-1, 3, -1),
    "expanded_scalar": lambda t: t[0, 0].expand(9, 11),
    "expanded_transposed": lambda t: t.t().unsqueeze(1).expand(-1, 4, -1),
    "overlapping": lambda t: t.reshape(-1).unfold(0, 40, 7),
    "size_one_dims": lambda t: t[:1].unsqueeze(0).unsqueeze(-1),
    "empty_slice": lambda t: t[:, :0],
}


@contextlib.contextmanager
def note(layout):
    try:
        yield
    except pytest.fail.Exception as err:
        pytest.fail(f"layout {layout}: {err}")


@pytest.mark.parametrize("fraction", [0.0, 0.02], ids=["clean", "planted"])
def test_layouts(agree, make, dtype, fraction):
    plain = make(dtype, 3000, seed=3, fraction=fraction).reshape(60, 50)
    for layout, view in LAYOUTS.items():
        with note(layout):
            agree(view(plain))


@pytest.mark.parametrize("at", [(0, 0), (0, 49), (59, 0), (59, 49), (31, 17)], ids=str)
def test_first_bad_is_logical(scan, at):
    # GIVEN one NaN in a tensor whose memory order is another than its own
    tensor = torch.zeros(50, 60).t()
    tensor[at] = float("nan")
    # THEN the index counts in the tensor's own rows
    assert int(scan(tensor)["first_bad"][0]) == at[0] * 50 + at[1]


def test_first_of_several_in_another_memory_order(scan):
    # GIVEN two NaN, the one that comes first in memory being the later one in the tensor
    tensor = torch.zeros(50, 60).t()
    tensor[40, 0] = tensor[1, 49] = float("nan")
    assert int(scan(tensor)["first_bad"][0]) == 1 * 50 + 49


def test_large_strided(agree, make):
    # More than one span, gathered
    tensor = make(torch.float32, 700_000, fraction=1e-5).reshape(700, 1000)[:, ::2]
    agree(tensor)
    agree(tensor.t())


def test_huge_expansion_is_read_once(core):
    # GIVEN 2^40 elements that are one in memory: reading them one by one would take minutes
    stats = stats_from_record(np.frombuffer(core.scan(torch.tensor(3.0).expand(1 << 20, 1 << 20)), RECORD_DTYPE))
    assert (stats.numel, stats.mean, stats.std, stats.norm) == (1 << 40, 3.0, 0.0, 3.0 * (1 << 20))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_conj_views(agree, make, dtype):
    z = make(dtype, 3000, seed=5, fraction=0.1).reshape(60, 50)
    agree(z.conj())
    agree(z.t().conj())
    agree(z[::2, 1::3].conj())
    agree(torch._neg_view(z))
    agree(torch._neg_view(z.conj()))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_parts_of_complex(agree, make, dtype):
    z = make(dtype, 3000, seed=6, fraction=0.1)
    agree(z.real)
    agree(z.imag)
    assert z.conj().imag.is_neg()
    agree(z.conj().imag)


def test_neg_view_swaps_the_infinities(scan):
    record = scan(torch._neg_view(torch.tensor([1.0, float("inf"), float("inf"), 5.0])))
    assert (record["n_posinf"][0], record["n_neginf"][0], record["min"][0], record["max"][0]) == (0, 2, -5.0, -1.0)


def test_offset_into_storage(agree, make, dtype):
    agree(make(dtype, 3000, fraction=0.01)[1:-1])
