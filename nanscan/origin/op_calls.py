"""Call records of one step, as the op-level judge reads them: what each bad call read, made, and where it ran.

Mirrors csrc/record/call_record.h; a test compares the two offset by offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from nanscan.record import RECORD_BYTES, Flag, LinkCode

MAX_CALL_INPUTS = 8
BATCH = 128  # calls turned into objects at a time: with 100,000 at once most of the time goes to the garbage collector
CALL_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("call", "<u8"),
        ("step", "<u8"),
        ("site", "<u4"),
        ("bits", "<u2"),
        ("flags", "<u2"),
        ("op", "<u4"),
        ("line", "<u4"),
        ("kind", "u1"),
        ("n_inputs", "u1"),
        ("n_outputs", "u1"),
        ("output_bits", "u1"),
        ("thread", "<u4"),
        ("inputs", "<u8", (MAX_CALL_INPUTS,)),
        ("output", "<u8"),
        ("padding", "u1", (6,)),
        ("device", "i1"),
        ("phase", "u1"),
    ]
)
assert CALL_DTYPE.itemsize == RECORD_BYTES


class CallKind(IntEnum):
    """What was observed."""

    OP = 0
    NODE = 1  # an autograd node
    TOP = 2  # the output of an outermost module call
    CHECK = 3  # nanscan.check
    LOSS = 4  # a backward pass begins at this value
    LEAF = 5  # a gradient arrives at a leaf


class CallBit(IntFlag):
    """What is known of the call besides its values."""

    CONSTANT = 1
    WRITES_PARAM = 2
    SELECTS = 4
    HOST = 8
    NO_TENSORS = 16
    RECOMPUTE = 32
    SCALES = 64


class Holds(IntFlag):
    """What a value holds, and what is known of it."""

    NAN = 1
    POS = 2
    NEG = 4
    OUTSIDE = 8
    UNINIT = 16
    CHANGED = 32
    PARAM = 64
    LATE = 128  # never in what the judges see


class Detail(IntEnum):
    """What output_index of a detail record says when it is not the ordinal of one of the call's tensors."""

    COUNTS = 0x8000  # the first of those that are ordinals of the call's tensors of integers
    NUMBER = 0xFFFF  # an argument that is a Python number
    SAVED = 0xFFFE  # a value that an autograd node had saved of its forward
    BEHIND = 0xFFFC  # the node inside which this one was made: double backward
    INNER = 0xFFFD  # the op inside a Python backward: its name, and with Flag.PARAM its result


BAD = int(Holds.NAN | Holds.POS | Holds.NEG)


@dataclass(slots=True, eq=False)
class OpCall:
    """One call with a bad value around it."""

    seq: int
    call: int
    step: int
    kind: int
    bits: int
    op: int
    line: int
    site: int
    phase: int
    out_bits: int
    inputs: tuple[tuple[int, int], ...]  # (value id, Holds)
    forward: int  # call id of the forward op that made this node; 0 = not known, or not a node
    outputs: list[Any] = field(default_factory=list)  # records of bad results
    reads: dict[int, Any] = field(default_factory=dict)  # input ordinal -> record
    last_clean: dict[int, tuple[int, int]] = field(default_factory=dict)  # input ordinal -> (site, line)
    details: list[Any] = field(default_factory=list)  # records for the cause rules

    @property
    def in_bits(self) -> int:
        together = 0
        for _, holds in self.inputs:
            together |= holds & BAD
        return together


def batches(records: np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of at most BATCH calls with all their records: most calls only carry, and their objects can go at once."""
    starts = np.flatnonzero(records["flags"] & int(Flag.CALL))[BATCH::BATCH].tolist()
    for begin, end in zip([0, *starts], [*starts, len(records)], strict=True):
        yield records[begin:end]


def calls_in(records: np.ndarray) -> tuple[list[OpCall], list[Any]]:
    """(calls in seq order with their statistics, the other records) of a piece of the ring."""
    is_call = (records["flags"] & int(Flag.CALL)) != 0
    as_calls = np.ascontiguousarray(records[is_call]).view(CALL_DTYPE)
    calls = {call.call: call for call in _all_calls(as_calls)}
    rest: list[Any] = []
    others = records[~is_call]
    keys = zip(others["call"].tolist(), others["flags"].tolist(), strict=True)
    for rec, (number, flags) in zip(others, keys, strict=True):
        owner = calls.get(number) if number else None
        if owner is None:
            if not flags & int(Flag.DETAIL):  # the names it gives are not sites
                rest.append(rec)
        elif flags & int(Flag.DETAIL):
            owner.details.append(rec)
        elif flags & int(Flag.LINK):
            if int(rec["n"]) == LinkCode.PRODUCER_OF_INPUT:
                owner.last_clean[int(rec["output_index"])] = (int(rec["site"]), int(rec["n_zero"]))
        elif flags & int(Flag.INPUT):
            owner.reads[int(rec["output_index"])] = rec
        else:
            owner.outputs.append(rec)
    return list(calls.values()), rest


_COLUMNS = ("seq", "call", "step", "kind", "bits", "op", "line", "site", "phase", "n_inputs", "output_bits")


def _all_calls(rows: np.ndarray) -> list[OpCall]:
    """Column by column: reading a numpy row field by field takes ten times as long."""
    columns = zip(*(rows[name].tolist() for name in _COLUMNS), strict=True)
    values, holds = (rows["inputs"] >> 8).tolist(), (rows["inputs"] & 0xFF).tolist()
    behind = rows["inputs"][:, MAX_CALL_INPUTS - 1].tolist()
    calls = []
    for i, (seq, call, step, kind, bits, op, line, site, phase, n, made) in enumerate(columns):
        inputs = tuple(zip(values[i][:n], holds[i][:n], strict=True))
        forward = behind[i] if kind == CallKind.NODE else 0
        calls.append(OpCall(seq, call, step, kind, bits, op, line, site, phase, made & BAD, inputs, forward))
    return calls
