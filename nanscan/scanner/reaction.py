"""on_anomaly: what happens in the user's program when an event comes up."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from nanscan.errors import NonFiniteError, NonFiniteWarning
from nanscan.events.event import Event
from nanscan.events.log import is_power_of_ten

MAX_SITES = 4096  # distinct sites whose repeats are counted apart


_OWN_FILES = tuple(
    os.path.abspath(folder) + os.sep
    for folder in (os.path.join(os.path.dirname(__file__), os.pardir), os.path.dirname(torch.__file__))
)


def _users_frame() -> FrameType:
    """The innermost frame that is neither ours nor torch's: the line a warning should point at."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_OWN_FILES, "<")):
        frame = frame.f_back
    return frame


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the user's program that is running."""
    frame = _users_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, registry=registry)


class Reaction:
    """Carries out one of "warn", "raise", "record", "stop" or a callable.

    Args:
        on_anomaly: the policy. "warn" and the callable are told of errors and warnings, "raise" and "stop" of errors.
        describe: event -> the text of the error or warning.
    """

    def __init__(self, on_anomaly: str | Callable[[Event], Any], describe: Callable[[Event], str]) -> None:
        self.on_anomaly = on_anomaly
        self._describe = describe
        self._hits: Counter[tuple[str | None, ...]] = Counter()
        self._pending: Event | None = None

    def take(self, event: Event) -> None:
        """A new event. Warns now; raising waits for a safe point."""
        if event.severity == "info" or self.on_anomaly == "record":
            return
        if callable(self.on_anomaly):
            self.on_anomaly(event)
        elif self.on_anomaly == "warn":
            self._warn(event)
        elif event.severity == "error" and self._pending is None:
            self._pending = event

    def _warn(self, event: Event) -> None:
        key: tuple[str | None, ...] = event.key
        if key not in self._hits and len(self._hits) >= MAX_SITES:
            key = ("more sites",)
        self._hits[key] += 1
        count = self._hits[key]
        if not is_power_of_ten(count):
            return
        again = "" if count == 1 else f" ({count} times so far at this site)"
        warn_user(f"{event}{again}. print(scanner.report()) shows it whole.", NonFiniteWarning)

    def safe_point(self, boundary: bool) -> None:
        """Raise what is pending: "raise" at any safe point, "stop" at a step's boundary only."""
        if self._pending is None or (self.on_anomaly == "stop" and not boundary):
            return
        event, self._pending = self._pending, None
        raise NonFiniteError(self._describe(event), event)
