"""What followed the first culprit, in counts: the "after" line of a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Consequences of the first error.

    Args:
        outputs: module outputs that turned bad later in the same step.
        gradients, n_gradients: bad parameter gradients of that step, and how many parameters there are.
        parameters: parameters and buffers left bad after that step.
        later_steps: further steps that were bad only because of it.
        skipped: whether the loss scaler skipped that step, so that nothing was written.
    """

    outputs: int = 0
    gradients: int = 0
    n_gradients: int = 0
    parameters: int = 0
    later_steps: int = 0
    skipped: bool = False
