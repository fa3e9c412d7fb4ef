"""What one element is, decided on its bits: the Triton twin of csrc/scan/classify.h.

Elements are loaded as integers and classified as integers, whatever the format. That is right under flush-to-zero, and
it is right in Triton's interpreter, which decodes fp8 infinities and NaN to numbers and compares bfloat16 by raw bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Values of enum DType in record.h. Complex tensors come as pairs of F32 or F64.
F64 = tl.constexpr(1)
F32 = tl.constexpr(2)
F16 = tl.constexpr(3)
BF16 = tl.constexpr(4)
F8_E4M3FN = tl.constexpr(5)
F8_E5M2 = tl.constexpr(6)
F8_E4M3FNUZ = tl.constexpr(7)
F8_E5M2FNUZ = tl.constexpr(8)

# Ordered as enum Class in classify.h: the class of a complex element is the larger one of its parts'.
ZERO = tl.constexpr(0)
NORMAL = tl.constexpr(1)
SUBNORMAL = tl.constexpr(2)
NEG_INF = tl.constexpr(3)
POS_INF = tl.constexpr(4)
NAN = tl.constexpr(5)

# (bytes, smallest normal magnitude, infinity's magnitude or 0 for none), by format.
LAYOUTS = {
    1: (8, 1 << 52, 0x7FF << 52),
    2: (4, 1 << 23, 0xFF << 23),
    3: (2, 1 << 10, 0x1F << 10),
    4: (2, 1 << 7, 0xFF << 7),
    5: (1, 1 << 3, 0),
    6: (1, 1 << 2, 0x1F << 2),
    7: (1, 1 << 3, 0),
    8: (1, 1 << 2, 0),
}


@triton.jit
def pointer(address, BYTES: tl.constexpr):
    """An int64 address as a pointer to signed integers of BYTES."""
    if BYTES == 8:
        return address.to(tl.pointer_type(tl.int64))
    elif BYTES == 4:
        return address.to(tl.pointer_type(tl.int32))
    elif BYTES == 2:
        return address.to(tl.pointer_type(tl.int16))
    else:
        return address.to(tl.pointer_type(tl.int8))


@triton.jit
def vectors(address, BYTES: tl.constexpr):
    """The same for an address known to be a multiple of 16. The promise must be made where the pointer is made."""
    if BYTES == 8:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16)
    elif BYTES == 4:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)
    elif BYTES == 2:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int16)), 16)
    else:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int8)), 16)


@triton.jit
def widen(bits):
    """Loaded integers as int32 or int64; the sign stays the sign."""
    if bits.dtype == tl.int64:
        return bits
    else:
        return bits.to(tl.int32)


@triton.jit
def magnitude(bits, FORMAT: tl.constexpr):
    """Everything but the sign."""
    if FORMAT == F64:
        return bits & 0x7FFFFFFFFFFFFFFF
    elif FORMAT == F32:
        return bits & 0x7FFFFFFF
    elif FORMAT == F16 or FORMAT == BF16:  # noqa: SIM109 - Triton has no "in"
        return bits & 0x7FFF
    else:
        return bits & 0x7F


@triton.jit
def is_nan(bits, mag, FORMAT: tl.constexpr, INF: tl.constexpr):
    if INF != 0:
        return mag > INF
    elif FORMAT == F8_E4M3FN:
        return mag == 0x7F
    else:
        return bits == -0x80  # fnuz: the pattern that would be a negative zero


@triton.jit
def classify(bits, FORMAT: tl.constexpr, MIN_NORMAL: tl.constexpr, INF: tl.constexpr):
    """[...] int32: the class of each value."""
    mag = magnitude(bits, FORMAT)
    found = tl.where(mag == 0, ZERO, tl.where(mag < MIN_NORMAL, SUBNORMAL, NORMAL))
    if INF != 0:
        found = tl.where(mag == INF, tl.where(bits < 0, NEG_INF, POS_INF), found)
    return tl.where(is_nan(bits, mag, FORMAT, INF), NAN, found)


@triton.jit
def decode(mag, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """[...] float32: a small format's magnitude, exactly. Exponent zero goes apart: no subnormal float32 may arise."""
    normal = ((mag << (23 - MANTISSA)) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
    return tl.where(mag < 1 << MANTISSA, mag.to(tl.float32) * 2.0 ** (1 - BIAS - MANTISSA), normal)


@triton.jit
def value(bits, FORMAT: tl.constexpr):
    """[...] float32, or float64 for F64: the numbers, infinities and NaN included."""
    if FORMAT == F64:
        return bits.to(tl.float64, bitcast=True)
    elif FORMAT == F32:
        return bits.to(tl.float32, bitcast=True)
    elif FORMAT == F16:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif FORMAT == BF16:
        return (bits << 16).to(tl.float32, bitcast=True)
    elif FORMAT == F8_E5M2:
        return (bits << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        # Three formats without infinities
        sign = (bits & 0x80) << 24
        mag = bits & 0x7F
        if FORMAT == F8_E4M3FN:
            number = decode(mag, 3, 7)
        elif FORMAT == F8_E4M3FNUZ:
            number = decode(mag, 3, 8)
        else:
            number = decode(mag, 2, 16)
        signed = (number.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
        return tl.where(is_nan(bits, mag, FORMAT, 0), float("nan"), signed)
