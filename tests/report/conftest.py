"""A ready-made event for reports."""

from __future__ import annotations

import dataclasses

import pytest

from nanscan.events import Event
from nanscan.record import TensorStats


def stats(nan=0, posinf=0, neginf=0, numel=268_435_456, absmax=31.2, index=None, dtype="bfloat16"):
    return TensorStats(
        numel=numel, nan=nan, posinf=posinf, neginf=neginf, zero=0, subnormal=0, min=-absmax, max=absmax, mean=0.0,
        std=1.0, norm=1.0, absmax=absmax, first_bad_index=index, dtype=dtype,
    )  # fmt: skip


@pytest.fixture
def make_stats():
    return stats


@pytest.fixture
def make_event():
    def make(**fields):
        base = Event(
            severity="error", kind="nan", phase="forward", step=1843, batch=1843, module="layers.17.attn",
            module_type="Attention", output_index=0, shape=(8, 32, 1024, 1024), dtype="bfloat16",
            stats=stats(nan=65536, index=1023), first_bad_index=1023, inputs={"input 0": stats(absmax=4.5)},
            chain=("layers.17.attn", "layers.17", "head", "Net"),
            evidence=("output[0] holds 65536 NaN among 268435456 elements", "its inputs were finite, max|x| 4.5"),
            remedy="put nanscan.check(tensor, 'name') inside layers.17.attn to find the line", time=5.0,
        )  # fmt: skip
        return dataclasses.replace(base, **fields)

    return make
