"""What the instructions compute, without memory and control: [n] arrays in, [n] arrays out.

Exact except for fma.f64, which is done in 80 bits: its last bit may differ. fma.f32 goes through float64.
"""

from __future__ import annotations

import numpy as np

from .bits import BIT_HANDLERS
from .block import NUMPY, RAW, U64, Block, UnknownInstruction

Mask = np.ndarray
NAN = {2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF), 8: np.uint64(0x7FF8 << 48)}
TYPES = {*NUMPY, "bf16", "pred"}
BINARY = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
COMPARE.update(gt=np.greater, ge=np.greater_equal)
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def compute(block: Block, op: tuple[str, ...], args: tuple[str, ...], mask: Mask) -> None:
    """Run one instruction of this file. Raises UnknownInstruction."""
    kind = op[-1]
    if kind in ("f32x2", "f16x2", "bf16x2"):
        return _packed(block, op, args, mask)
    if op[0] not in HANDLERS:
        raise UnknownInstruction(op[0])
    result = HANDLERS[op[0]](block, op, args)
    if result.dtype.kind == "f" and op[0] not in ("selp", "abs", "neg"):
        # One NaN for all, as GPUs make it: x86 keeps payloads, which depend on the order of operands
        result = np.where(np.isnan(result), NAN[result.dtype.itemsize].view(result.dtype), result)
    if result.dtype != bool and kind == "bf16":
        result = to_bf16(result)
    elif result.dtype != bool and op[0] not in KEEP_TYPE:
        result = result.astype(NUMPY[kind], copy=False)
    if op[0] == "setp":
        first, _, second = args[0].partition("|")
        block.put(first.strip(), result, mask)
        if second:
            block.put(second.strip(), ~result, mask)
        return None
    return block.put(args[0], result, mask)


def to_bf16(value: np.ndarray) -> np.ndarray:
    bits = np.asarray(value, np.float32).view(np.uint32).astype(U64)
    rounded = ((bits + U64(0x7FFF) + ((bits >> U64(16)) & U64(1))) >> U64(16)).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)


def _packed(block: Block, op: tuple[str, ...], args: tuple[str, ...], mask: Mask) -> None:
    """Two values in one register: the instruction on each half."""
    half = op[-1][:-2]
    width = {"f32": 32, "f16": 16, "bf16": 16}[half]
    ones = U64(2**width - 1)
    whole = np.zeros(block.n, U64)
    for k in range(2):
        names = tuple(f"%packed{i}" for i in range(len(args)))
        for name, arg in zip(names[1:], args[1:], strict=True):
            block.registers[name] = (block.bits(arg) >> U64(width * k)) & ones
        compute(block, (*op[:-1], half), names, block.everybody)
        whole |= (block.registers[names[0]] & ones) << U64(width * k)
    block.put(args[0], whole.astype(RAW[width // 4]), mask)


def _binary(block, op, args):
    a, b = block.get(args[1], op[-1]), block.get(args[2], op[-1])
    if "sat" in op or "cc" in op:
        raise UnknownInstruction(".".join(op))
    return BINARY[op[0]](a, b)


def _not(block, op, args):
    return ~block.get(args[1], op[-1])


def _mul(block, op, args):
    """mul and mad: .lo, .hi, .wide of integers; mul of floats."""
    kind = op[-1]
    a, b = block.get(args[1], kind), block.get(args[2], kind)
    c_kind = kind
    if kind[0] not in "sub" or kind == "bf16":
        if op[0] == "mad":
            return _fma(block, op, args)
        return a * b
    if "wide" in op:
        c_kind = kind[0] + str(2 * int(kind[1:]))
        product = a.astype(NUMPY[c_kind]) * b.astype(NUMPY[c_kind])
    elif "hi" in op:
        width = 8 * a.dtype.itemsize
        high = [(int(x) * int(y) >> width) & (2**width - 1) for x, y in zip(a, b, strict=True)]
        product = np.array(high, RAW[width // 8]).view(a.dtype)
    else:
        product = a * b
    return product + block.get(args[3], c_kind) if op[0] == "mad" else product


def _fma(block, op, args):
    kind = op[-1]
    wider = np.longdouble if kind == "f64" else np.float64
    a, b, c = (block.get(arg, kind).astype(wider) for arg in args[1:4])
    return (a * b + c).astype(np.float32 if kind == "bf16" else NUMPY[kind])


def _div(block, op, args):
    a, b = block.get(args[1], op[-1]), block.get(args[2], op[-1])
    if a.dtype.kind == "f":
        if op[0] == "rem":
            raise UnknownInstruction("rem of floats")
        return a / b
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    quotients = [0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    rest = [x - q * y for (x, y), q in zip(pairs, quotients, strict=True)]
    width = 8 * a.dtype.itemsize
    out = [value & (2**width - 1) for value in (quotients if op[0] == "div" else rest)]
    return np.array(out, RAW[width // 8]).view(a.dtype)


def _extremum(block, op, args):
    values = [block.get(arg, op[-1]) for arg in args[1:]]
    if values[0].dtype.kind == "f":
        quiet, strict = (np.fmin, np.minimum) if op[0] == "min" else (np.fmax, np.maximum)
        pick = strict if "NaN" in op else quiet
    else:
        pick = np.minimum if op[0] == "min" else np.maximum
    out = values[0]
    for value in values[1:]:
        out = pick(out, value)
    return out


def _shift(block, op, args):
    value = block.get(args[1], op[-1])
    width = 8 * value.dtype.itemsize
    by = block.bits(args[2]) & U64(0xFFFFFFFF)
    within = np.minimum(by, U64(width - 1)).astype(value.dtype)
    if op[0] == "shl":
        return np.where(by >= U64(width), value.dtype.type(0), value << within).astype(value.dtype)
    beyond = value >> value.dtype.type(width - 1) if op[-1][0] == "s" else value.dtype.type(0)
    return np.where(by >= U64(width), beyond, value >> within).astype(value.dtype)


def _setp(block, op, args):
    kind, name = op[-1], UNSIGNED.get(op[1], op[1])
    a, b = block.get(args[1], kind), block.get(args[2], kind)
    is_float = a.dtype.kind == "f"
    unordered = np.isnan(a) | np.isnan(b) if is_float else np.zeros(block.n, bool)
    if name in ("num", "nan"):
        result = unordered if name == "nan" else ~unordered
    else:
        result = COMPARE[name[:2]](a, b)
        result = result | unordered if is_float and name.endswith("u") and len(name) == 3 else result & ~unordered
    if op[2] in ("and", "or", "xor"):
        result = BINARY[op[2]](result, block.get(args[3], "pred"))
    return result


def _selp(block, op, args):
    return np.where(block.get(args[3], "pred"), block.get(args[1], op[-1]), block.get(args[2], op[-1]))


def _cvt(block, op, args):
    kinds = [part for part in op[1:] if part in TYPES or part.endswith("x2")]
    if len(kinds) != 2 or (kinds[0].endswith("x2") and kinds[0] != "f16x2"):
        raise UnknownInstruction(".".join(op))
    to, source = kinds
    if source in ("e5m2x2", "e4m3x2"):
        both = block.get(args[1], "u16")
        low, high = (_fp8_to_f16(part, source).view(np.uint16).astype(np.uint32) for part in (both & 0xFF, both >> 8))
        return low | (high << np.uint32(16))
    value = block.get(args[1], source)
    if to == "bf16":
        return to_bf16(value)
    if value.dtype.kind == "f" and to[0] in "su":
        rounding = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
        value = rounding[next(part for part in op if part in rounding)](value)
        info = np.iinfo(NUMPY[to])
        clipped = np.clip(value, float(info.min), float(info.max))
        out = [min(max(int(x), info.min), info.max) for x in np.where(np.isnan(value), 0, clipped)]
        return np.array(out, NUMPY[to])
    if value.dtype.kind == "f" and any(part in op for part in ("rni", "rmi", "rpi", "rzi")):
        raise UnknownInstruction(".".join(op))
    if "sat" in op:
        raise UnknownInstruction(".".join(op))
    value = value.astype(NUMPY[to])
    return value.astype(np.int32) if to in ("s8", "s16") else value  # the register is wider: the sign goes on


def _fp8_to_f16(bits: np.ndarray, kind: str) -> np.ndarray:
    bits = bits.astype(np.uint16)
    if kind == "e5m2x2":
        return (bits << 8).view(np.float16)
    value = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).view(np.float16) * np.float16(256)
    return np.where((bits & 0x7F) == 0x7F, np.float16(np.nan), value).astype(np.float16)


HANDLERS = {
    **dict.fromkeys(BINARY, _binary),
    "not": _not,
    **dict.fromkeys(("mul", "mad"), _mul),
    "fma": _fma,
    **dict.fromkeys(("div", "rem"), _div),
    **dict.fromkeys(("min", "max"), _extremum),
    **dict.fromkeys(("shl", "shr"), _shift),
    **BIT_HANDLERS,
    "setp": _setp,
    "selp": _selp,
    "cvt": _cvt,
    "abs": lambda block, op, args: np.abs(block.get(args[1], op[-1])),
    "neg": lambda block, op, args: -block.get(args[1], op[-1]),
    "sqrt": lambda block, op, args: np.sqrt(block.get(args[1], op[-1])),
    "rcp": lambda block, op, args: NUMPY[op[-1]].type(1) / block.get(args[1], op[-1]),
}
KEEP_TYPE = {"cvt", "mul", "mad", *BIT_HANDLERS}  # the result may be wider or narrower than the type says
