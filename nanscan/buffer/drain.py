"""From the ring's bytes to a numpy array of records."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nanscan.record import RECORD_DTYPE


class Drainable(Protocol):
    """A core session: the compiled one or its plain twin."""

    def drain(self) -> bytes:
        """All published records, in sequence order, 128 bytes each; they leave the ring."""


def drain(session: Drainable) -> NDArray[np.void]:
    """Take everything published so far out of the ring.

    Returns:
        ``[n]`` records of RECORD_DTYPE in sequence order, read-only. Empty when nothing is there. Never blocks.
    """
    return np.frombuffer(session.drain(), dtype=RECORD_DTYPE)
