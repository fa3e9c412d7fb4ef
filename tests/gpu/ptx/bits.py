"""Instructions that move bits about: permutations, fields, counts."""

from __future__ import annotations

import numpy as np

from .block import RAW, U64, UnknownInstruction


def funnel(block, op, args):
    low, high, by = (block.bits(arg) & U64(0xFFFFFFFF) for arg in args[1:4])
    by = by & U64(31) if "wrap" in op else np.minimum(by, U64(32))
    both = high << U64(32) | low
    return ((both << by) >> U64(32) if op[1] == "l" else both >> by).astype(np.uint32)


def prmt(block, op, args):
    if len(op) > 2:
        raise UnknownInstruction(".".join(op))
    both = block.bits(args[1]) & U64(0xFFFFFFFF) | block.bits(args[2]) << U64(32)
    selectors = block.bits(args[3])
    out = np.zeros(block.n, U64)
    for k in range(4):
        selector = (selectors >> U64(4 * k)) & U64(15)
        byte = (both >> ((selector & U64(7)) * U64(8))) & U64(255)
        byte = np.where(selector & U64(8), np.where(byte & U64(128), U64(255), U64(0)), byte)
        out |= byte << U64(8 * k)
    return out.astype(np.uint32)


def lop3(block, op, args):
    a, b, c = (block.bits(arg).astype(np.uint32) for arg in args[1:4])
    table = int(args[4], 0)
    out = np.zeros(block.n, np.uint32)
    for k in range(8):
        if table >> k & 1:
            out |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return out


def field(block, op, args):
    """bfe of an unsigned or signed value."""
    value = block.get(args[1], op[-1])
    width = 8 * value.dtype.itemsize
    out = []
    for x, at, length in zip(value, block.bits(args[2]) & U64(255), block.bits(args[3]) & U64(255), strict=True):
        field = (int(x) & (2**width - 1)) >> int(at) & ((1 << int(length)) - 1)
        if op[-1][0] == "s" and length and field >> (int(length) - 1) & 1:
            field |= (2**width - 1) & ~((1 << int(length)) - 1)
        out.append(field)
    return np.array(out, RAW[width // 8]).view(value.dtype)


def insert(block, op, args):
    """bfi: bits [at, at + length) of b are those of a."""
    a, b = block.get(args[1], op[-1]), block.get(args[2], op[-1])
    ats, lengths = block.bits(args[3]) & U64(255), block.bits(args[4]) & U64(255)
    out = []
    for x, y, at, length in zip(a.tolist(), b.tolist(), ats.tolist(), lengths.tolist(), strict=True):
        ones = ((1 << length) - 1) << at
        out.append(((x << at & ones) | (y & ~ones)) & (2 ** (8 * a.dtype.itemsize) - 1))
    return np.array(out, a.dtype)


def count_bits(block, op, args):
    value = block.get(args[1], op[-1])
    width = 8 * value.dtype.itemsize
    if op[0] == "bfind" and op[-1][0] == "s":
        raise UnknownInstruction(".".join(op))
    if "shiftamt" in op:
        return np.array([(width - int(x).bit_length()) if x else 0xFFFFFFFF for x in value], np.uint32)
    of_one = {
        "popc": lambda x: x.bit_count(),
        "clz": lambda x: width - x.bit_length(),
        "brev": lambda x: int(f"{x:0{width}b}"[::-1], 2),
        "bfind": lambda x: (x.bit_length() - 1) & 0xFFFFFFFF,
    }[op[0]]
    counted = [of_one(int(x)) for x in value.view(RAW[width // 8])]
    return np.array(counted, RAW[width // 8] if op[0] == "brev" else np.uint32)


BIT_HANDLERS = {
    "shf": funnel,
    "prmt": prmt,
    "lop3": lop3,
    "bfe": field,
    "bfi": insert,
    **dict.fromkeys(("popc", "clz", "brev", "bfind"), count_bits),
}
