"""What a record of given bytes has to say, worked out by numpy in long double, element by element from their bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanscan.record import DType, Flag

CONJ, NEG = 1, 2
COUNTS = ("n", "n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal", "first_bad")


@dataclass(frozen=True)
class Format:
    """A floating-point format by its fields. nans: magnitudes that are NaN; inf: the magnitude of infinity, if any."""

    bits: int
    mantissa: int
    bias: int
    inf: int | None
    minus_zero_is_nan: bool = False
    top_is_nan: bool = False  # only the largest magnitude is

    @property
    def uint(self) -> np.dtype:
        return np.dtype(f"u{self.bits // 8}")

    def magnitude(self, bits: np.ndarray) -> np.ndarray:
        return bits & self.uint.type((1 << (self.bits - 1)) - 1)

    def is_nan(self, bits: np.ndarray) -> np.ndarray:
        magnitude = self.magnitude(bits)
        if self.minus_zero_is_nan:
            return bits == 1 << (self.bits - 1)
        if self.top_is_nan:
            return magnitude == (1 << (self.bits - 1)) - 1
        return magnitude > self.inf

    def is_inf(self, bits: np.ndarray) -> np.ndarray:
        return self.magnitude(bits) == self.inf if self.inf is not None else np.zeros(bits.shape, bool)

    def is_subnormal(self, bits: np.ndarray) -> np.ndarray:
        magnitude = self.magnitude(bits)
        return (magnitude > 0) & (magnitude < 1 << self.mantissa)

    def negative(self, bits: np.ndarray) -> np.ndarray:
        return (bits >> self.uint.type(self.bits - 1)) != 0

    def value(self, bits: np.ndarray) -> np.ndarray:
        """Exact values, as long doubles; meaningless where not finite."""
        magnitude = self.magnitude(bits).astype(np.uint64)
        exponent = (magnitude >> np.uint64(self.mantissa)).astype(np.int64)
        fraction = (magnitude & np.uint64((1 << self.mantissa) - 1)).astype(np.longdouble)
        significand = np.where(exponent > 0, np.longdouble(1 << self.mantissa), 0) + fraction
        value = np.ldexp(significand, (np.maximum(exponent, 1) - self.bias - self.mantissa).astype(np.int32))
        return np.where(self.negative(bits), -value, value)


_F32 = Format(32, 23, 127, 0x7F800000)
_F64 = Format(64, 52, 1023, 0x7FF0000000000000)
FORMATS = {
    DType.F64: _F64,
    DType.F32: _F32,
    DType.F16: Format(16, 10, 15, 0x7C00),
    DType.BF16: Format(16, 7, 127, 0x7F80),
    DType.F8_E4M3FN: Format(8, 3, 7, None, top_is_nan=True),
    DType.F8_E5M2: Format(8, 2, 15, 0x7C),
    DType.F8_E4M3FNUZ: Format(8, 3, 8, None, minus_zero_is_nan=True),
    DType.F8_E5M2FNUZ: Format(8, 2, 16, None, minus_zero_is_nan=True),
    DType.C64: _F32,
    DType.C128: _F64,
}


def n_parts(dtype: DType) -> int:
    return 2 if dtype.is_complex else 1


@dataclass
class Tensor:
    """A view of a storage: bits is [n_stored * n_parts] unsigned integers; sizes, strides, offset count elements."""

    dtype: DType
    bits: np.ndarray
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    misalign: int = 0  # bytes past a 16-byte boundary
    flags: int = 0
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        self.numel = int(np.prod(self.sizes, dtype=np.int64))

    @property
    def parts(self) -> np.ndarray:
        """[numel, n_parts] bits in logical order, lazy bits applied."""
        index = np.full(self.sizes, self.offset, np.int64)
        for d, stride in enumerate(self.strides):
            shape = [1] * len(self.sizes)
            shape[d] = -1
            index = index + (np.arange(self.sizes[d]) * stride).reshape(shape)
        parts = self.bits.reshape(-1, n_parts(self.dtype))[index.reshape(-1)].copy()
        sign = parts.dtype.type(1 << (FORMATS[self.dtype].bits - 1))
        if self.flags & NEG and not FORMATS[self.dtype].minus_zero_is_nan:
            parts ^= sign
        elif self.flags & NEG:
            parts = np.where(FORMATS[self.dtype].magnitude(parts) == 0, parts, parts ^ sign)
        if self.flags & CONJ and self.dtype.is_complex:
            parts[:, 1] ^= sign
        return parts


def contiguous(dtype: DType, bits: np.ndarray, **more: Any) -> Tensor:
    return Tensor(dtype, bits, (bits.size // n_parts(dtype),), (1,), **more)


def expect(tensor: Tensor) -> dict[str, Any]:
    """Field of the record -> value; mean and m2 in long double."""
    form, parts = FORMATS[tensor.dtype], tensor.parts
    nan, inf, negative = form.is_nan(parts), form.is_inf(parts), form.negative(parts)
    is_nan = nan.any(1)
    is_pos = ~is_nan & (inf & ~negative).any(1)
    is_neg = ~is_nan & ~is_pos & inf.any(1)
    bad = is_nan | is_pos | is_neg
    zero = ((form.magnitude(parts) == 0) & ~nan).all(1)
    values = form.value(parts[~bad]).reshape(-1)
    with np.errstate(over="ignore"):
        mean = values.mean() if values.size else np.longdouble(0)
        m2 = ((values - mean) ** 2).sum()
    return {
        "n": len(parts),
        "n_nan": is_nan.sum(),
        "n_posinf": is_pos.sum(),
        "n_neginf": is_neg.sum(),
        "n_zero": zero.sum(),
        "n_subnormal": (~bad & form.is_subnormal(parts).any(1)).sum(),
        "first_bad": np.flatnonzero(bad)[0] if bad.any() else -1,
        "min": values.min() if values.size else np.inf,
        "max": values.max() if values.size else -np.inf,
        "mean": mean,
        "m2": m2,
        "n_values": values.size,
    }


def complaints(record: np.void, tensor: Tensor, tolerance: float) -> list[str]:
    """How the record differs from what it should say. tolerance: of mean in std, of std relative."""
    want = expect(tensor)
    found = [
        f"{name}: {record[name]}, should be {want[name]}" for name in COUNTS if int(record[name]) != int(want[name])
    ]
    found += [
        f"{name}: {record[name]!r}, should be {want[name]!r}" for name in ("min", "max") if record[name] != want[name]
    ]
    bad = want["n_nan"] + want["n_posinf"] + want["n_neginf"] > 0
    if bool(record["flags"] & Flag.BAD) != bad:
        found.append(f"flags: {record['flags']}")
    if record["dtype"] != tensor.dtype:
        found.append(f"dtype: {record['dtype']}, should be {tensor.dtype}")
    if want["n_values"] == 0:
        if record["mean"] != 0 or record["m2"] != 0:
            found.append("mean and m2 of nothing are not 0")
        return found
    std, got = np.sqrt(want["m2"] / want["n_values"]), np.sqrt(np.longdouble(record["m2"]) / want["n_values"])
    # A double holds the mean to half a unit in its last place, whatever the spread
    slack = tolerance * std + 4 * np.finfo(np.float64).eps * np.abs(want["mean"]) + 1e-320
    if not abs(np.longdouble(record["mean"]) - want["mean"]) <= slack:
        found.append(f"mean: {record['mean']!r}, should be {want['mean']!r} within {slack}")
    overflows = want["m2"] > np.finfo(np.float64).max
    if overflows and record["m2"] != np.inf:
        found.append(f"m2: {record['m2']!r}, should be inf")
    if not overflows and not abs(got - std) <= tolerance * std + 1e-160:
        found.append(f"std: {got!r}, should be {std!r} within {tolerance}")
    return found


def specials(dtype: DType) -> np.ndarray:
    """Patterns of a format that kernels get wrong: NaN, infinities, both zeros, subnormals, both ends of the range."""
    form = FORMATS[dtype]
    top, one = (1 << (form.bits - 1)) - 1, 1 << form.mantissa
    magnitudes = [0, 1, one - 1, one]
    magnitudes += [top, form.inf, form.inf + 1, form.inf - 1] if form.inf is not None else [top, top - 1]
    both = [m | sign for m in magnitudes for sign in (0, 1 << (form.bits - 1))]
    return np.array(both, form.uint)


def random_bits(rng: np.random.Generator, dtype: DType, n: int, share: float = 0.4) -> np.ndarray:
    """[n * n_parts] patterns, a share of them special, the others about normally distributed."""
    form = FORMATS[dtype]
    n *= n_parts(dtype)
    bits = nearest(dtype, rng.standard_normal(n))
    pick = rng.random(n) < share
    bits[pick] = rng.choice(specials(dtype), int(pick.sum()))
    return bits.astype(form.uint)


def nearest(dtype: DType, values: np.ndarray) -> np.ndarray:
    """Patterns near finite values (rounded towards zero in the last place for the small formats)."""
    form = FORMATS[dtype]
    if form.bits == 64:
        return values.astype(np.float64).view(np.uint64)
    if form.bits == 32:
        return values.astype(np.float32).view(np.uint32)
    if form.bits == 16 and form.bias == 15:
        return values.astype(np.float16).view(np.uint16)
    wide = values.astype(np.float32).view(np.uint32).astype(np.int64)
    magnitude = (wide & 0x7FFFFFFF) - ((127 - form.bias) << 23)
    top = (1 << (form.bits - 1)) - 2 if form.inf is None else form.inf - 1
    small = np.clip(magnitude >> (23 - form.mantissa), 1 << form.mantissa, top)
    return (small | (np.signbit(values).astype(np.int64) << (form.bits - 1))).astype(form.uint)
