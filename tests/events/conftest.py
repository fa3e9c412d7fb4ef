"""A ready-made event and its statistics."""

from __future__ import annotations

import dataclasses
import math

import pytest

from nanscan.events import Event
from nanscan.record import TensorStats

STATS = TensorStats(
    numel=32, nan=2, posinf=1, neginf=0, zero=3, subnormal=0, min=-1.5, max=math.inf, mean=math.nan, std=1.0, norm=4.0,
    absmax=2.0, first_bad_index=9, dtype="float32",
)  # fmt: skip


@pytest.fixture
def make_event():
    def make(**fields):
        base = Event(
            severity="error", kind="both", phase="forward", step=1843, batch=1843, module="blocks.2.attn",
            module_type="Attention", output_index=0, device="cpu", dtype="float32", shape=(4, 8), stats=STATS,
            inputs={"input 0": STATS}, chain=("blocks.2.attn", "Net"), evidence=("output[0] holds 2 NaN",),
            first_bad_index=9, seq=7, time=12.5,
        )  # fmt: skip
        return dataclasses.replace(base, **fields)

    return make
