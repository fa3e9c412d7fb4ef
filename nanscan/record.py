"""The 128-byte record, as numpy sees it, and what a person reads out of it.

Mirrors csrc/record/record.h, which explains every field and flag; a test compares the two offset by offset.
Needs numpy only: a log can be read where torch is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Literal

import numpy as np

RECORD_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("call", "<u8"),
        ("step", "<u8"),
        ("site", "<u4"),
        ("dtype", "<u2"),
        ("flags", "<u2"),
        ("n", "<u8"),
        ("n_nan", "<u8"),
        ("n_posinf", "<u8"),
        ("n_neginf", "<u8"),
        ("n_zero", "<u8"),
        ("n_subnormal", "<u8"),
        ("min", "<f8"),
        ("max", "<f8"),
        ("mean", "<f8"),
        ("m2", "<f8"),
        ("first_bad", "<i8"),
        ("shape", "<u4"),
        ("output_index", "<u2"),
        ("device", "i1"),
        ("phase", "u1"),
    ]
)
RECORD_BYTES = 128
assert RECORD_DTYPE.itemsize == RECORD_BYTES, f"a record is {RECORD_BYTES} bytes, not {RECORD_DTYPE.itemsize}"

COUNTS = ("n", "n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal")


class DType(IntEnum):
    """Element type of the scanned tensor."""

    UNKNOWN = 0
    F64 = 1
    F32 = 2
    F16 = 3
    BF16 = 4
    F8_E4M3FN = 5
    F8_E5M2 = 6
    F8_E4M3FNUZ = 7
    F8_E5M2FNUZ = 8
    C64 = 9
    C128 = 10

    @property
    def torch_name(self) -> str:
        """The attribute of ``torch``: ``DType.F32.torch_name == "float32"``."""
        return _TORCH_NAMES[self]

    @property
    def is_complex(self) -> bool:
        return self in (DType.C64, DType.C128)

    @property
    def max_finite(self) -> float:
        """Largest finite value (of one part, for complex); NaN for UNKNOWN."""
        return _MAX_FINITE[self]

    @classmethod
    def from_torch_name(cls, name: str) -> DType:
        """From ``"float32"`` or ``str(torch.float32)``; UNKNOWN if there is no such element type here."""
        return _BY_TORCH_NAME.get(name.removeprefix("torch."), cls.UNKNOWN)


_TORCH_NAMES = {
    DType.UNKNOWN: "unknown",
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F8_E4M3FN: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2",
    DType.F8_E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8_E5M2FNUZ: "float8_e5m2fnuz",
    DType.C64: "complex64",
    DType.C128: "complex128",
}
_BY_TORCH_NAME = {name: dtype for dtype, name in _TORCH_NAMES.items()}
_F32_MAX = 3.4028234663852886e38
_F64_MAX = 1.7976931348623157e308
_MAX_FINITE = {
    DType.UNKNOWN: math.nan,
    DType.F64: _F64_MAX,
    DType.F32: _F32_MAX,
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F8_E4M3FN: 448.0,
    DType.F8_E5M2: 57344.0,
    DType.F8_E4M3FNUZ: 240.0,
    DType.F8_E5M2FNUZ: 57344.0,
    DType.C64: _F32_MAX,
    DType.C128: _F64_MAX,
}


class Phase(IntEnum):
    """When in a training step a value was seen."""

    NONE = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


class Flag(IntFlag):
    """What a record is about; record.h explains each bit."""

    BAD = 1
    INPUT = 2
    PARAM = 4
    LINK = 8
    ENTER = 16
    RECOMPUTE = 32
    TOP = 64
    CHANGED = 128
    KNOWN = 256
    CALL = 512
    REPLAY = 1024
    LATE = 2048
    OP = 4096
    DETAIL = 8192


class LinkCode(IntEnum):
    """What a LINK record says; the code stands in its field n."""

    PARENT = 1
    PRODUCER_OF_INPUT = 2
    GRAD_PRODUCER = 3
    GRAD_CONSUMER = 4
    REPLAY_END = 5
    ARGUMENT = 6
    INNER_OP = 7
    PAST = 8


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor.

    Counts are exact. min, max, mean, std (the population's), norm (L2) and absmax run over the finite elements, for
    complex tensors over both parts of them; they are NaN when there is none, except norm, which is 0 then.
    """

    numel: int
    nan: int
    posinf: int
    neginf: int
    zero: int
    subnormal: int
    min: float
    max: float
    mean: float
    std: float
    norm: float
    absmax: float
    first_bad_index: int | None
    """Flat row-major index of the first NaN or Inf; None if there is none."""
    dtype: str
    """``"float32"``, ``"bfloat16"`` ...: the name of the attribute of torch."""

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or Inf."""
        return self.nan + self.posinf + self.neginf

    def counted(self, number: Callable[[int], str] = str) -> str:
        """``3 NaN, 1 -Inf``: what is bad in it; `number` words the counts."""
        kinds = ((self.nan, "NaN"), (self.posinf, "+Inf"), (self.neginf, "-Inf"))
        return ", ".join(f"{number(n)} {name}" for n, name in kinds if n)

    @property
    def finite(self) -> int:
        """How many elements are neither."""
        return self.numel - self.nonfinite

    @property
    def kind(self) -> Literal["nan", "inf", "both", "none"]:
        """What is wrong with the tensor."""
        if self.nan:
            return "both" if self.posinf or self.neginf else "nan"
        return "inf" if self.posinf or self.neginf else "none"

    @property
    def headroom(self) -> float:
        """Largest finite value of the dtype over absmax: 1 is the brink; inf for all zeros, NaN if unknown."""
        if self.absmax == 0.0:
            return math.inf
        return DType.from_torch_name(self.dtype).max_finite / self.absmax


def new_record() -> np.ndarray:
    """A record of nothing, the zero of `merge`: [1] of RECORD_DTYPE."""
    record = np.zeros(1, RECORD_DTYPE)
    record["min"], record["max"], record["first_bad"], record["device"] = math.inf, -math.inf, -1, -1
    return record


def n_moment(record: Any) -> int:
    """How many values stand behind mean and m2: the finite elements, twice that for complex."""
    finite = int(record["n"]) - int(record["n_nan"]) - int(record["n_posinf"]) - int(record["n_neginf"])
    return 2 * finite if DType(int(record["dtype"])).is_complex else finite


def stats_from_record(record: Any) -> TensorStats:
    """Read a record (an ``np.void`` or an array of one) that carries statistics."""
    record = _one(record)
    n = n_moment(record)
    low, high, mean, m2 = (float(record[name]) for name in ("min", "max", "mean", "m2"))
    first_bad = int(record["first_bad"])
    if n == 0:
        low = high = mean = std = absmax = math.nan
        norm = 0.0
    else:
        std, absmax = math.sqrt(m2 / n), max(abs(low), abs(high))
        norm = math.hypot(math.sqrt(m2), math.sqrt(n) * mean)  # not sqrt(m2 + n * mean^2): large means would overflow
    return TensorStats(
        numel=int(record["n"]),
        nan=int(record["n_nan"]),
        posinf=int(record["n_posinf"]),
        neginf=int(record["n_neginf"]),
        zero=int(record["n_zero"]),
        subnormal=int(record["n_subnormal"]),
        min=low,
        max=high,
        mean=mean,
        std=std,
        norm=norm,
        absmax=absmax,
        first_bad_index=first_bad if first_bad >= 0 else None,
        dtype=DType(int(record["dtype"])).torch_name,
    )


def merge(a: Any, b: Any) -> np.ndarray:
    """Statistics of a's elements followed by b's: [1] of RECORD_DTYPE. Associative; `new_record` is its zero.

    Who and where (site, call, step ...) come from a; b's first_bad moves up by a's n. The dtypes must agree unless one
    side is empty. Moments merge by Chan's formula.
    """
    a, b = _one(a), _one(b)
    if int(a["n"]) and int(b["n"]) and a["dtype"] != b["dtype"]:
        names = [DType(int(record["dtype"])).torch_name for record in (a, b)]
        raise ValueError(f"merge(a, b): records of different dtypes, {names[0]} and {names[1]}; merge like with like")
    out = np.zeros(1, RECORD_DTYPE)
    out[0] = a if int(a["n"]) else b
    for name in ("seq", "call", "step", "site", "shape", "output_index", "device", "phase"):
        out[name] = a[name]
    for name in COUNTS:
        out[name] = int(a[name]) + int(b[name])
    out["min"], out["max"] = min(float(a["min"]), float(b["min"])), max(float(a["max"]), float(b["max"]))
    out["mean"], out["m2"] = _chan(
        (n_moment(a), float(a["mean"]), float(a["m2"])), (n_moment(b), float(b["mean"]), float(b["m2"]))
    )
    first_a, first_b = int(a["first_bad"]), int(b["first_bad"])
    out["first_bad"] = first_a if first_a >= 0 else (int(a["n"]) + first_b if first_b >= 0 else -1)
    out["flags"] = int(a["flags"]) | int(b["flags"])
    return out


def _chan(a: tuple[int, float, float], b: tuple[int, float, float]) -> tuple[float, float]:
    """Mean and m2 of two groups given as (n, mean, m2)."""
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = a, b
    if n_a == 0 or n_b == 0:
        return (mean_b, m2_b) if n_a == 0 else (mean_a, m2_a)
    n = n_a + n_b
    delta = mean_b - mean_a
    if math.isinf(delta):  # both near float64's ends, with opposite signs
        return mean_a * (n_a / n) + mean_b * (n_b / n), math.inf
    return mean_a + delta * (n_b / n), m2_a + m2_b + delta * delta * (n_a * (n_b / n))


def _one(record: Any) -> Any:
    """An ``np.void`` from itself or from an array of exactly one."""
    if isinstance(record, np.ndarray):
        if record.size != 1:
            raise ValueError(f"record: expected one record, found an array of {record.size}; index it first")
        return record.reshape(1)[0]
    return record
