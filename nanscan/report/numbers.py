"""Numbers as people read them: counts, shares, shapes, coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_SHORT = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
}


def dtype_name(dtype: str) -> str:
    """``fp32``, ``bf16``, ``fp8_e4m3fn`` ..."""
    return _SHORT.get(dtype, dtype.replace("float8", "fp8"))


def count(n: int) -> str:
    """Exact below a million, then ``268 M``."""
    for unit, name in ((10**9, "G"), (10**6, "M")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return str(n)


def plural(n: int, noun: str) -> str:
    return f"{count(n)} {noun}" if n == 1 else f"{count(n)} {noun}s"


def share(part: int, whole: int) -> str:
    """`` (0.02 %)``, nothing where it says nothing new."""
    if whole <= 1 or part == 0 or part == whole:
        return ""
    percent = 100 * part / whole
    return f" ({percent:.2g} %)" if percent < 99.5 else " (nearly all)"


def magnitude(x: float) -> str:
    """Three digits: ``31.2``, ``6.1e+04``, ``0``."""
    return f"{x:.3g}"


def coordinates(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Where a flat row-major index lies in a tensor of this shape."""
    place: list[int] = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        place.append(rest)
    return tuple(reversed(place))


def trend(values: Sequence[float]) -> str:
    """What a short history says: ``flat, so not a slow overflow``, ``growing 8.1x``, or nothing."""
    finite = [v for v in values if math.isfinite(v) and v > 0]
    if len(finite) < 3 or len(finite) < len(values):
        return ""
    if max(finite) <= 1.5 * min(finite):
        return "flat, so not a slow overflow"
    if all(a <= b for a, b in pairwise(finite)):
        return f"growing {finite[-1] / finite[0]:.2g}x"
    return ""
