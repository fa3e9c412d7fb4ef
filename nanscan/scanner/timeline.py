"""Records and the points where they are judged, in one order.

A point of the program (a forward ended, the optimizer has stepped, the step is over) is judged with what was recorded
up to there. On the CPU that is in the ring by then. On a device some of it is still being computed: the point waits for
it, the program does not, and the verdict comes late but is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanscan.origin import ModuleOrigin, OpOrigin
from nanscan.record import RECORD_DTYPE


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that was reached.

    Args:
        position: records up to this sequence number came before it.
        point: "forward", "backward", "optimizer" or "boundary".
        step: the step it belongs to.
        scaler, skipped: what a GradScaler had said by then.
        origin: the judge of that step.
        scale: the loss scale of a skipped step, and what update() makes of it; None where that is not known.
    """

    position: int
    point: str
    step: int
    scaler: bool
    skipped: bool
    origin: ModuleOrigin | OpOrigin
    scale: tuple[float, float] | None = None


class Timeline:
    """Cuts what comes out of the ring at the marks."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._held: list[np.ndarray] = []  # drained, and before no mark that is complete
        self._drained = 0  # sequence number of the last of them

    @property
    def waiting(self) -> int:
        """Marks whose records are not all there yet."""
        return len(self._marks)

    def mark(self, mark: Mark) -> None:
        """A point is reached. Of several at one position with nothing between, each is judged."""
        self._marks.append(mark)

    def cut(self, records: np.ndarray, drained: int) -> Iterator[tuple[np.ndarray, Mark]]:
        """Take what was drained, up to that place in the ring; yields the records before each mark that is complete by
        now, with it. There may be fewer records than places: a healthy call on a device leaves none."""
        if len(records):
            self._held.append(records)
        self._drained = drained
        while self._marks and self._marks[0].position <= self._drained:
            mark = self._marks.popleft()
            yield self._before(mark.position), mark

    def _before(self, position: int) -> np.ndarray:
        if not self._held:
            return np.empty(0, RECORD_DTYPE)
        records = self._held[0] if len(self._held) == 1 else np.concatenate(self._held)
        n = int(np.searchsorted(records["seq"], position, side="right"))
        self._held = [records[n:]] if n < len(records) else []
        return records[:n]
