"""Runs a compiled kernel on the CPU: blocks one after another, every instruction for all threads of a block at once.

This is PTX, what nvcc and Triton hand to ptxas; what ptxas makes of it, the hardware's memory order and speed stay
unseen. It reports: access out of bounds or misaligned, uninitialised shared memory, races between warps, plain stores
of two threads to one address, shuffles and votes whose lanes are not there, barriers that not everybody reaches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .arithmetic import compute
from .block import NUMPY, RAW, U64, Block, UnknownInstruction
from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, GlobalMemory, check_aligned
from .parse import Instruction, Module, PtxError

SPACES = ("param", "global", "shared", "local", "const")
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
ORDERED = {"volatile", "relaxed", "acquire", "release"}
NOTHING_TO_DO = {"membar", "fence", "prefetch", "griddepcontrol", "nanosleep", "discard", "applypriority"}
UPDATE = {
    "add": lambda old, x, y: old + x,
    "min": lambda old, x, y: min(old, x),
    "max": lambda old, x, y: max(old, x),
    "exch": lambda old, x, y: x,
    "and": lambda old, x, y: old & x,
    "or": lambda old, x, y: old | x,
    "xor": lambda old, x, y: old ^ x,
    "cas": lambda old, x, y: y if old == x else old,
    "inc": lambda old, x, y: old * 0 if old >= x else old + 1,
}


def launch(
    module: Module,
    name: str,
    grid: tuple[int, int, int],
    n_threads: int,
    args: Iterable[int | bytes],
    memory: GlobalMemory,
    dynamic_shared: int = 0,
    blocks: Iterable[tuple[int, int, int]] | None = None,
) -> dict[str, int]:
    """Runs a grid; returns how often each instruction ran.

    args: integers (addresses are integers) or bytes (structs passed by value); missing ones at the end are zero.
    blocks: run only these, for grids too large to run.
    """
    entry = module.entries[name]
    params = bytearray(sum(size for _, size in entry.params.values()) + 16 * len(entry.params) + 16)
    for (offset, size), arg in zip(entry.params.values(), args, strict=False):
        raw = arg if isinstance(arg, bytes) else (int(arg) & (2 ** (8 * size) - 1)).to_bytes(size, "little")
        assert len(raw) == size, f"{name}: argument of {len(raw)} bytes for a parameter of {size}"
        params[offset : offset + size] = raw
    counts: dict[str, int] = {}
    owners: dict[int, Any] = {}
    if blocks is None:
        blocks = ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
    with np.errstate(all="ignore"):
        for index in blocks:
            block = Block(module, entry, memory, bytes(params), n_threads, grid, index, dynamic_shared, owners, counts)
            block.run(execute)
    return counts


def execute(block: Block, instruction: Instruction, mask: np.ndarray) -> str | None:
    """One instruction for the threads of mask; returns what Block.run wants to know."""
    op, args = instruction.op, instruction.args
    name = op[0]
    if name == "bra":
        return args[0]
    if name in ("ret", "exit"):
        return "exit"
    if name in ("bar", "barrier"):
        if "warp" in op:
            _members(block, block.bits(args[0]), mask)
            return None
        if "sync" not in op or args[0] != "0" or len(args) > 1:
            raise UnknownInstruction(instruction.text)
        return "wait"
    if name in NOTHING_TO_DO:
        return None
    if name in OTHERS:
        OTHERS[name](block, op, args, mask)
    elif name == "trap":
        raise PtxError("trap")
    else:
        compute(block, op, args, mask)
    return None


def _names(vector: str) -> list[str]:
    return [name.strip() for name in vector.strip("{} ").split(",")]


def _space(op: tuple[str, ...]) -> str:
    parts = [part.split("::")[0] for part in op]
    return next((part for part in parts if part in SPACES), "generic")


def _mov(block, op, args, mask):
    kind = op[-1]
    if kind == "pred":
        block.put(args[0], block.get(args[1], "pred"), mask)
    elif args[0][0] == "{":
        names = _names(args[0])
        width = int(kind[1:]) // len(names)
        for k, name in enumerate(names):
            part = (block.bits(args[1]) >> U64(width * k)) & U64(2**width - 1)
            block.put(name, part.astype(RAW[width // 8]), mask)
    elif args[1][0] == "{":
        names = _names(args[1])
        width = int(kind[1:]) // len(names)
        whole = np.zeros(block.n, U64)
        for k, name in enumerate(names):
            whole |= (block.bits(name) & U64(2**width - 1)) << U64(width * k)
        block.put(args[0], whole.astype(RAW[int(kind[1:]) // 8]), mask)
    else:
        block.put(args[0], block.get(args[1], kind), mask)


def _cvta(block, op, args, mask):
    window = U64(WINDOWS.get(_space(op), 0))
    address = block.bits(args[1])
    block.put(args[0], address - window if "to" in op else address + window, mask)


def _ld(block, op, args, mask):
    kind, names = op[-1], _names(args[0])
    size = int(kind[1:]) // 8
    raw = block.load(_space(op), block.address(args[1]), size * len(names), mask)
    for k, name in enumerate(names):
        value = np.ascontiguousarray(raw[:, k * size : (k + 1) * size]).view(NUMPY[kind])[:, 0]
        block.put(name, value.astype(np.int64) if kind[0] == "s" else value, mask)


def _st(block, op, args, mask):
    size = int(op[-1][1:]) // 8
    parts = [block.bits(name).astype(RAW[size]).reshape(-1, 1).view(np.uint8) for name in _names(args[1])]
    plain = not ORDERED.intersection(op)
    block.store(_space(op), block.address(args[0]), np.concatenate(parts, 1), mask, plain)


def _atom(block, op, args, mask):
    """atom and red, in thread order."""
    dtype = NUMPY[op[-1]]
    at = 1 if op[0] == "atom" else 0
    update = UPDATE[next(part for part in op[1:] if part in UPDATE)]
    addresses = block.address(args[at])
    x = block.get(args[at + 1], op[-1])
    y = block.get(args[at + 2], op[-1]) if len(args) > at + 2 else x
    check_aligned("memory", "atomic", addresses[mask], dtype.itemsize)
    old = np.zeros(block.n, dtype)
    for thread in np.flatnonzero(mask):
        address = addresses[thread]
        if _space(op) == "shared" or int(address) >= SHARED_WINDOW:
            place = block.shared.atomic(int(address) & ((1 << 56) - 1), dtype.itemsize)
            old[thread] = place.view(dtype)[0]
            place[:] = np.array([update(old[thread], x[thread], y[thread])], dtype).view(np.uint8)
        else:
            one = np.array([address], U64)
            old[thread] = block.memory.load(one, dtype.itemsize).view(dtype)[0, 0]
            new = np.array([update(old[thread], x[thread], y[thread])], dtype)
            block.memory.store(one, new.view(np.uint8).reshape(1, -1))
    if op[0] == "atom":
        block.put(args[0], old, mask)


def _members(block: Block, members: np.ndarray, mask: np.ndarray) -> None:
    """Every lane of the mask operand has to be here."""
    if mask is block.everybody and block.n % 32 == 0:
        return
    for warp in np.unique(block.warp[mask]):
        here = np.flatnonzero(mask & (block.warp == warp))
        have = sum(1 << int(block.lane[thread]) for thread in here)
        want = int(members[here[0]]) & 0xFFFFFFFF
        if want & ~have:
            raise PtxError(f"warp operation: lanes {want & ~have:#x} of its mask are not here")


def _shfl(block, op, args, mask):
    mode = op[2] if op[1] == "sync" else op[1]
    value, by, control = block.bits(args[1]), block.bits(args[2]).astype(int) & 31, block.bits(args[3]).astype(int)
    if op[1] == "sync":
        _members(block, block.bits(args[4]), mask)
    clamp, segment = control & 31, (control >> 8) & 31
    low, high = block.lane & segment, (block.lane & segment) | (clamp & ~segment & 31)
    sources = {"up": block.lane - by, "down": block.lane + by, "bfly": block.lane ^ by}
    source = low | (by & ~segment & 31) if mode == "idx" else sources[mode]
    within = source >= high if mode == "up" else source <= high
    thread = (np.arange(block.n) & ~31) + np.where(within, source, block.lane)
    if not mask[thread[mask]].all():
        raise PtxError("shuffle reads a lane that is not here")
    target, _, predicate = args[0].partition("|")
    block.put(target.strip(), value[thread].astype(np.uint32), mask)
    if predicate:
        block.put(predicate.strip(), within, mask)


def _warp_reduce(block, op, args, mask):
    """redux and vote."""
    _members(block, block.bits(args[2]), mask)
    value = block.get(args[1], "pred" if op[0] == "vote" else op[-1])
    reduce = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    reduce.update(xor=np.bitwise_xor, any=np.logical_or, all=np.logical_and)
    if value.dtype.kind == "f":
        reduce.update({} if "NaN" in op else {"min": np.fmin, "max": np.fmax})
    out = np.zeros(block.n, np.uint32) if "ballot" in op else value.copy()
    for warp in np.unique(block.warp[mask]):
        here = mask & (block.warp == warp)
        if "ballot" in op:
            out[here] = sum(1 << int(lane) for lane in block.lane[here & value])
        elif "uni" in op:
            out[here] = value[here].all() or not value[here].any()
        else:
            way = next(part for part in op[1:] if part in reduce)
            out[here] = reduce[way].reduce(np.abs(value[here]) if "abs" in op else value[here])
    block.put(args[0], out, mask)


def _active_mask(block, op, args, mask):
    bits = [sum(1 << int(lane) for lane in block.lane[mask & (block.warp == warp)]) for warp in block.warp]
    block.put(args[0], np.array(bits, np.uint32), mask)


OTHERS = {
    "mov": _mov,
    "cvta": _cvta,
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "atom": _atom,
    "red": _atom,
    "shfl": _shfl,
    "redux": _warp_reduce,
    "vote": _warp_reduce,
    "activemask": _active_mask,
    "createpolicy": lambda block, op, args, mask: block.put(args[0], np.zeros(block.n, U64), mask),
}
