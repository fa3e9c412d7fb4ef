"""Scan and append: what a plain session writes its records with. Twin of ring.h and of half of session.cpp."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from nanscan.backends.eager import UnscannableTensor, scan_record
from nanscan.hooks.plain_values import device_of
from nanscan.record import RECORD_DTYPE, Flag

MAX_SHAPES = 4096  # then id 0, "not recorded": memory stays bounded with ragged batches


class Ring:
    """A bounded queue of records. When it is full the newest is dropped and counted: the earliest matter most."""

    def __init__(self, capacity: int) -> None:
        self.capacity = max(2, 1 << (capacity - 1).bit_length())
        self.appended = 0  # tickets given out; a dropped record takes none
        self.dropped = 0
        self._records: deque[bytes] = deque()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        return len(self._records)

    def append(self, record: np.ndarray) -> None:
        with self._lock:
            if len(self._records) >= self.capacity:
                self.dropped += 1
                return
            self.appended += 1
            record["seq"] = self.appended
            self._records.append(record.tobytes())

    def drain(self) -> bytes:
        """All records, in sequence order; they leave the ring."""
        with self._lock:
            records, self._records = self._records, deque()
        return b"".join(records)


class Writer:
    """A ring, the shapes behind its records, and the counters.

    Args:
        capacity: records the ring holds, rounded up to a power of two.
    """

    def __init__(self, capacity: int) -> None:
        self.ring = Ring(capacity)
        self.step = 0
        self.n_bad = 0
        self.n_scans = 0
        self.unscanned: dict[str, int] = {}
        self.lock = threading.RLock()
        self._shapes: list[tuple[int, ...]] = [()]

    def look(self, tensor: torch.Tensor) -> np.ndarray | None:
        """The tensor's statistics, or None; counts nothing and writes nothing."""
        try:
            return self._scan(tensor)
        except UnscannableTensor:
            return None

    def record(self, tensor: torch.Tensor, *, flags: int = 0, **fields: Any) -> np.ndarray | None:
        """Scan and append; the record, or None when the tensor could not be scanned (counted by reason)."""
        try:
            record = self._scan(tensor)
        except UnscannableTensor as err:
            with self.lock:
                self.unscanned[str(err)] = self.unscanned.get(str(err), 0) + 1
            return None
        bad = bool(int(record["flags"][0]) & Flag.BAD)
        self.append(record, flags=flags, shape=self.shape_id(tensor) if bad else 0, **fields)
        with self.lock:
            self.n_scans += 1
            self.n_bad += bad
        return record

    def append(self, record: np.ndarray, *, flags: int, **fields: Any) -> None:
        """Append a scanned record; `flags` are added to BAD."""
        record["flags"] |= np.uint16(flags)
        for name, value in fields.items():
            record[name] = value
        record["step"] = self.step
        self.ring.append(record)

    def append_marker(self, **fields: Any) -> None:
        """Append a record that carries no statistics of its own (links, markers)."""
        self.append(np.zeros(1, RECORD_DTYPE), **fields)

    def _scan(self, tensor: torch.Tensor) -> np.ndarray:
        if torch._C._get_tracing_state() is not None:
            raise UnscannableTensor("inside torch.jit.trace: a scan in plain PyTorch would become part of the trace")
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            raise UnscannableTensor("inside a CUDA graph capture: a scan in plain PyTorch would wait for the device")
        # Ours are torch ops like any others: the user's modes must not see them. A checkpoint's cache of op results
        # would hand them out to the wrong op.
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                record = scan_record(tensor)
        except RuntimeError as err:  # a storage that torch does not let anybody read
            raise UnscannableTensor(f"torch refuses access to the data: {type(err).__name__}") from None
        record["device"] = device_of(tensor)
        return record

    def shape_id(self, tensor: torch.Tensor) -> int:
        """Shapes are interned: a record has room for an id only."""
        shape = tuple(tensor.shape)
        with self.lock:
            if shape in self._shapes[1:]:
                return self._shapes.index(shape, 1)
            if len(self._shapes) >= MAX_SHAPES:
                return 0
            self._shapes.append(shape)
            return len(self._shapes) - 1

    def shape(self, id: int) -> tuple[int, ...]:
        """Sizes behind a record's shape id; () if it is not known."""
        with self.lock:
            return self._shapes[id] if 0 <= id < len(self._shapes) else ()
