"""What nanscan raises and warns with.

Wrong arguments raise ValueError or TypeError as anywhere in Python; the classes here are for what a caller may want to
catch by name.
"""

from __future__ import annotations

from typing import Any


class NanscanError(RuntimeError):
    """nanscan itself cannot go on: no backend, a closed scanner, an installation that does not fit."""


class NonFiniteError(FloatingPointError):
    """A NaN or Inf was found and ``on_anomaly`` asked to stop for it.

    Args:
        message: the first culprit, as a person should read it.
        event: the Event behind it. Kept beside ``args`` so that the error still pickles (worker processes re-raise it).
    """

    def __init__(self, message: str, event: Any = None) -> None:
        super().__init__(message)
        self.event = event


class NonFiniteWarning(RuntimeWarning):
    """A NaN or Inf was found and ``on_anomaly="warn"``."""


class NanscanWarning(UserWarning):
    """A notice about nanscan itself: a slower backend is in use, something could not be observed."""
