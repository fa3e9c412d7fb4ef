"""One thread block: registers as vectors over its threads, the smallest program counter first, barriers.

Divergent threads are groups of one program counter each; groups that meet again become one. Within an instruction all
threads of a group run at once, so what is not modelled is the order of memory accesses of different warps: see
memory.py for how races are found all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, GlobalMemory, SharedMemory, check_aligned
from .parse import Entry, Instruction, Module, PtxError

U64 = np.uint64
NUMPY = {
    **{f"u{8 * n}": np.dtype(f"u{n}") for n in (1, 2, 4, 8)},
    **{f"b{8 * n}": np.dtype(f"u{n}") for n in (1, 2, 4, 8)},
    **{f"s{8 * n}": np.dtype(f"i{n}") for n in (1, 2, 4, 8)},
    **{f"f{8 * n}": np.dtype(f"f{n}") for n in (2, 4, 8)},
}
RAW = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
UNDEFINED = 0xDEADBEEF_DEADBEEF  # LLVM reads registers that were never set; the result must not matter
MAX_STEPS = 5_000_000


class UnknownInstruction(NotImplementedError):
    """The interpreter does not know this; teach it, or the test proves nothing."""


class Block:
    """State of one thread block while it runs."""

    def __init__(
        self, module: Module, entry: Entry, memory: GlobalMemory, params: bytes, n_threads: int,
        grid: tuple[int, int, int], index: tuple[int, int, int], dynamic_shared: int, owners: dict[int, Any],
        counts: dict[str, int],
    ) -> None:  # fmt: skip
        self.entry, self.memory, self.n, self.index = entry, memory, n_threads, index
        self.owners, self.counts = owners, counts
        self.params = np.frombuffer(params, np.uint8)
        self.shared_at: dict[str, int] = {}
        offset = 0
        for name, (align, size) in sorted(module.shared.items(), key=lambda item: item[1][1] == 0):
            offset = -(-offset // align) * align
            self.shared_at[name] = offset
            offset += size
        self.shared = SharedMemory(offset + dynamic_shared)
        self.local = np.full((n_threads, max((o + s for o, s in entry.local.values()), default=0)), 0xA5, np.uint8)
        threads = np.arange(n_threads)
        self.everybody = np.ones(n_threads, bool)  # the one mask of all threads, recognised by identity
        self.lane, self.warp = threads & 31, threads >> 5
        self.registers: dict[str, np.ndarray] = {}
        self.special = {"%tid.x": threads, "%laneid": self.lane, "%ntid.x": threads * 0 + n_threads}
        for i, axis in enumerate("xyz"):
            self.special[f"%ctaid.{axis}"] = threads * 0 + index[i]
            self.special[f"%nctaid.{axis}"] = threads * 0 + grid[i]
        for axis in "yz":
            self.special[f"%tid.{axis}"], self.special[f"%ntid.{axis}"] = threads * 0, threads * 0 + 1
        self._constants: dict[str, np.ndarray] = {}

    # Operands

    def bits(self, operand: str) -> np.ndarray:
        """[n] uint64: the raw bits of an operand."""
        if operand in self.registers:
            return self.registers[operand]
        if operand in self._constants:
            return self._constants[operand]
        if operand in self.special:
            value: Any = self.special[operand].astype(U64)
        elif operand[0] == "%":
            if operand.startswith(("%clock", "%globaltimer", "%smid", "%warpid", "%nsmid", "%envreg", "%lanemask")):
                raise UnknownInstruction(f"special register {operand}")
            return np.full(self.n, UNDEFINED, U64)
        elif operand[:2] in ("0f", "0d", "0F", "0D"):
            value = int(operand[2:], 16)
        elif operand in self.shared_at:
            value = self.shared_at[operand]
        elif operand in self.entry.local:
            value = self.entry.local[operand][0]
        elif operand in self.entry.params:
            value = self.entry.params[operand][0]
        else:
            value = int(operand.rstrip("U"), 0) & (2**64 - 1)
        self._constants[operand] = value if isinstance(value, np.ndarray) else np.full(self.n, value, U64)
        return self._constants[operand]

    def get(self, operand: str, kind: str) -> np.ndarray:
        """[n] of the PTX type kind."""
        if kind == "pred":
            flip = operand[0] == "!"
            name = operand.lstrip("!")
            value = self.registers[name] if name[0] == "%" else np.full(self.n, bool(int(name)))
            return value ^ flip
        negate = operand.startswith("-%")
        value = self.bits(operand[1:] if negate else operand)
        if kind == "bf16":
            value = (value.astype(np.uint32) << 16).view(np.float32)
        else:
            dtype = NUMPY[kind]
            value = value.astype(RAW[dtype.itemsize]).view(dtype)
        return -value if negate else value

    def put(self, register: str, value: np.ndarray, mask: np.ndarray) -> None:
        """Into the threads of mask. bool is a predicate; everything else is kept as bits."""
        if register == "_":
            return
        if value.dtype != bool:
            value = np.ascontiguousarray(value).view(RAW[value.dtype.itemsize]).astype(U64)
        if mask is not self.everybody:
            old = self.registers.get(register)
            value = np.where(mask, value, np.zeros_like(value) if old is None else old)
        self.registers[register] = value

    def address(self, operand: str) -> np.ndarray:
        base, _, offset = operand.strip("[] ").partition("+")
        return self.bits(base.strip()) + U64(int(offset or "0", 0) & (2**64 - 1))

    # Memory

    def load(self, space: str, addresses: np.ndarray, size: int, mask: np.ndarray) -> np.ndarray:
        """[n, size] uint8; zeros outside mask."""
        out = np.zeros((self.n, size), np.uint8)
        for where, chosen in self._spaces(space, addresses, mask):
            at = addresses[chosen] & U64((1 << 56) - 1)
            check_aligned(where, "load", at, size)
            if where == "global":
                out[chosen] = self.memory.load(at, size)
            elif where == "shared":
                out[chosen] = self.shared.load(at, size, self.warp[chosen])
            else:
                source = np.broadcast_to(self.params, (self.n, len(self.params))) if where == "param" else self.local
                columns = at.astype(np.int64)[:, None] + np.arange(size)
                if columns.max() >= source.shape[1]:
                    raise PtxError(f"{where} load out of bounds: {int(columns.max())} of {source.shape[1]} bytes")
                out[chosen] = source[np.flatnonzero(chosen)[:, None], columns]
        return out

    def store(self, space: str, addresses: np.ndarray, values: np.ndarray, mask: np.ndarray, plain: bool) -> None:
        """values: [n, size] uint8. plain: neither volatile nor ordered, so no other thread may store there."""
        size = values.shape[1]
        for where, chosen in self._spaces(space, addresses, mask):
            at = addresses[chosen] & U64((1 << 56) - 1)
            check_aligned(where, "store", at, size)
            if where == "global":
                if plain:
                    self._own(at, np.flatnonzero(chosen))
                self.memory.store(at, values[chosen])
            elif where == "shared":
                self.shared.store(at, values[chosen], self.warp[chosen])
            elif where == "local":
                columns = at.astype(np.int64)[:, None] + np.arange(size)
                self.local[np.flatnonzero(chosen)[:, None], columns] = values[chosen]
            else:
                raise PtxError("store to parameter space")

    def _own(self, addresses: np.ndarray, threads: np.ndarray) -> None:
        for address, thread in zip(addresses.tolist(), threads.tolist(), strict=True):
            me = (self.index, thread)
            if self.owners.setdefault(address, me) != me:
                raise PtxError(f"plain global stores by two threads to {address:#x}")

    def _spaces(self, space: str, addresses: np.ndarray, mask: np.ndarray):
        if space != "generic":
            if mask.any():
                yield space, mask
            return
        window = addresses & U64(3 << 56)
        for value, name in ((0, "global"), (SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local"), (PARAM_WINDOW, "param")):
            chosen = mask & (window == U64(value))
            if chosen.any():
                yield name, chosen

    # Control

    def run(self, execute) -> None:
        """Until every thread has left. execute(block, instruction, mask) -> None, "exit", "wait" or a label."""
        code, labels = self.entry.instructions, self.entry.labels
        groups = {0: self.everybody}
        waiting: dict[int, np.ndarray] = {}
        gone = np.zeros(self.n, bool)
        for _ in range(MAX_STEPS):
            if not groups:
                if not waiting:
                    return
                groups = self._release(code, waiting, gone)
                waiting = {}
            at = min(groups)
            mask = groups.pop(at)
            if at >= len(code):
                gone |= mask
                continue
            instruction = code[at]
            active = mask
            if instruction.guard is not None:
                register, negated = instruction.guard
                active = mask & (self.registers[register] ^ negated)
                if active.all():
                    active = self.everybody
            verdict = self._execute(execute, instruction, active) if active is mask or active.any() else ""
            stay = mask
            if verdict == "wait":
                self._join(waiting, at, active)
                stay = mask & ~active
            elif verdict == "exit":
                gone |= active
                stay = mask & ~active
            elif verdict:
                self._join(groups, labels[verdict], active)
                stay = mask & ~active
            if stay is mask or stay.any():
                self._join(groups, at + 1, stay)
        raise PtxError(f"no end after {MAX_STEPS} steps")

    def _join(self, groups: dict[int, np.ndarray], at: int, mask: np.ndarray) -> None:
        if at in groups:
            mask = groups[at] | mask
            if mask.all():
                mask = self.everybody
        groups[at] = mask

    def _execute(self, execute, instruction: Instruction, active: np.ndarray) -> str:
        name = ".".join(instruction.op)
        self.counts[name] = self.counts.get(name, 0) + 1
        try:
            return execute(self, instruction, active) or ""
        except PtxError as err:
            raise PtxError(f"{err} [block {self.index}] at: {instruction.text}") from None
        except UnknownInstruction as err:
            raise UnknownInstruction(f"{err} at: {instruction.text}") from None
        except (KeyError, IndexError, ValueError, TypeError) as err:
            raise UnknownInstruction(f"{type(err).__name__}: {err} at: {instruction.text}") from err

    def _release(self, code, waiting: dict[int, np.ndarray], gone: np.ndarray) -> dict[int, np.ndarray]:
        """Everybody who still runs waits: open the barrier, if it is one barrier and nobody has left without it."""
        if gone.any():
            n_waiting = sum(int(mask.sum()) for mask in waiting.values())
            raise PtxError(f"{n_waiting} threads wait at a barrier that {int(gone.sum())} have left without")
        if len(waiting) > 1:
            raise PtxError(f"threads of one block wait at {len(waiting)} different barriers")
        self.shared.next_interval()
        return {at + 1: mask for at, mask in waiting.items()}
