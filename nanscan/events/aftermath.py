"""What followed the first culprit, in counts: the "after" line of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Consequences of the first error. Counts are of the step it happened in, but for `later_steps`.

    Args:
        outputs: module outputs that turned bad later in that step. ops: the same at op level, nodes included.
        gradients, n_gradients: bad parameter gradients, and how many parameters had a gradient.
        parameters: parameters left bad after the optimizer's step.
        later_steps: further steps that were bad only because of it.
        skipped: whether the loss scaler skipped that step, so that nothing was written.
        buffers: buffers left bad after the optimizer's step, those that never were good left out.
        spread_from, spread_to: bad gradients that backward had left, and after clipping by their NaN norm; 0 if that
            did not happen.
        zeroed: gradients that clipping by an infinite norm has set to 0 altogether.
        last_clean: the last watched step after which no parameter was bad.
        scale_from, scale_to: the loss scale of a skipped step, and what update() makes of it.
        skips_in_a_row: skips up to that step, where there were more of them than a scale needs to settle; else 0.
    """

    outputs: int = 0
    gradients: int = 0
    n_gradients: int = 0
    parameters: int = 0
    later_steps: int = 0
    skipped: bool = False
    ops: int = 0
    buffers: int = 0
    spread_from: int = 0
    spread_to: int = 0
    zeroed: int = 0
    last_clean: int | None = None
    scale_from: float | None = None
    scale_to: float | None = None
    skips_in_a_row: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Aftermath:
        """From a log's line. What an older writer did not know, and what is no number, is left at its default."""
        known = {f.name: data[f.name] for f in fields(cls) if isinstance(data.get(f.name), (int, float))}
        return cls(**known)
