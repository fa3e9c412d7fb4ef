"""Values as strict JSON knows them. NaN and Inf are written as strings: a log that only Python can parse is no log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def encode(value: Any) -> Any:
    """`value` out of dict, list, str, int, float, bool and None only."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return encode(value.tolist())
    return str(value)


def number(value: Any) -> float:
    """A float back from what `encode` made of it."""
    return float(value)


def _name(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
