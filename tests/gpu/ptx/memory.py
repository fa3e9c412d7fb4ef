"""Memory with guards: global arrays with exact bounds, shared memory that notices races.

Accesses are vectors over the threads of one instruction: addresses [k], values [k, bytes] uint8.
"""

from __future__ import annotations

import numpy as np

from .parse import PtxError

# Generic addresses of the other spaces, far from those of global memory.
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
PARAM_WINDOW = 3 << 56


def check_aligned(space: str, what: str, addresses: np.ndarray, size: int) -> None:
    wrong = addresses % np.uint64(size) != 0
    if wrong.any():
        raise PtxError(f"misaligned {space} {what}: address {int(addresses[wrong][0]):#x}, size {size}")


class GlobalMemory:
    """The device's address space. Arrays lie pages apart, so that a step outside one meets nothing."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, int, np.ndarray]] = []
        self._next = 0x7000_0000_0000

    def add(self, array: np.ndarray, off: int = 0) -> int:
        """The address of the array, shared with the program and off bytes past a multiple of 4096."""
        assert array.flags.c_contiguous
        address = self._next + off
        self._next += -(-(array.nbytes + off + 4096) // 4096) * 4096
        raw = array.reshape(-1).view(np.uint8) if array.nbytes else np.zeros(0, np.uint8)
        self._arrays.append((address, array.nbytes, raw))
        return address

    def load(self, addresses: np.ndarray, size: int) -> np.ndarray:
        out = np.empty((len(addresses), size), np.uint8)
        for chosen, raw, offsets in self._find(addresses, size, "load"):
            out[chosen] = raw[offsets[:, None] + np.arange(size)]
        return out

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        for chosen, raw, offsets in self._find(addresses, values.shape[1], "store"):
            raw[offsets[:, None] + np.arange(values.shape[1])] = values[chosen]

    def _find(self, addresses: np.ndarray, size: int, what: str):
        left = np.ones(len(addresses), bool)
        while left.any():
            address = int(addresses[left][0])
            found = [a for a in self._arrays if a[0] <= address and address + size <= a[0] + a[1]]
            if not found:
                raise PtxError(f"out-of-bounds global {what}: address {address:#x}, size {size}")
            start, n_bytes, raw = found[0]
            offsets = addresses.astype(np.int64) - start
            chosen = left & (offsets >= 0) & (offsets + size <= n_bytes)
            yield chosen, raw, offsets[chosen]
            left &= ~chosen


class SharedMemory:
    """Shared memory of one block, poisoned at the start. `next_interval` is called when a barrier releases.

    A race is an access by two warps to one byte within one barrier interval, one of them a write that changes it.
    Within a warp only one instruction is looked at: two lanes that store different values to one address.
    """

    def __init__(self, n_bytes: int) -> None:
        self._bytes = np.full(max(n_bytes, 1), 0xA5, np.uint8)
        self._written = np.zeros(len(self._bytes), bool)
        self._writer = np.full(len(self._bytes), -1)  # warp that wrote last, in this interval; -1: none
        self._reader = np.full(len(self._bytes), -1)  # warp that read; -2: several

    def next_interval(self) -> None:
        self._writer[:] = -1
        self._reader[:] = -1

    def load(self, addresses: np.ndarray, size: int, warps: np.ndarray) -> np.ndarray:
        at = self._places(addresses, size, "load")
        if not self._written[at].all():
            raise PtxError(f"read of uninitialised shared memory at {int(at[~self._written[at]][0])}")
        writer = self._writer[at]
        raced = (writer >= 0) & (writer != warps[:, None])
        if raced.any():
            byte = int(at[raced][0])
            raise PtxError(f"shared-memory race: byte {byte} is read while warp {self._writer[byte]} writes it")
        for warp in np.unique(warps):
            mine = at[warps == warp]
            self._reader[mine] = np.where((self._reader[mine] == -1) | (self._reader[mine] == warp), warp, -2)
        return self._bytes[at]

    def store(self, addresses: np.ndarray, values: np.ndarray, warps: np.ndarray) -> None:
        at = self._places(addresses, values.shape[1], "store")
        for warp in np.unique(warps):
            mine, new = at[warps == warp], values[warps == warp]
            changes = self._bytes[mine] != new
            writer, reader = self._writer[mine], self._reader[mine]
            raced = changes & (((writer >= 0) & (writer != warp)) | ((reader != -1) & (reader != warp)))
            if raced.any():
                byte = int(mine[raced][0])
                raise PtxError(f"shared-memory race: warp {warp} overwrites byte {byte} in use elsewhere")
            self._bytes[mine] = new
            if (self._bytes[mine] != new).any():
                raise PtxError(f"two lanes of warp {warp} store different values to one shared address")
            self._written[mine] = True
            self._writer[mine] = warp

    def atomic(self, address: int, size: int) -> np.ndarray:
        """A view of the bytes, to read and to write: atomics race with nothing."""
        at = self._places(np.array([address], np.uint64), size, "atomic")[0]
        self._written[at] = True
        return self._bytes[at[0] : at[0] + size]

    def _places(self, addresses: np.ndarray, size: int, what: str) -> np.ndarray:
        at = addresses.astype(np.int64)[:, None] + np.arange(size)
        if at.size and (at.min() < 0 or at.max() >= len(self._bytes)):
            raise PtxError(f"shared {what} out of bounds: {int(at.max())} of {len(self._bytes)} bytes")
        return at
