"""Does the framework that drives the program keep a NaN loss out of its own log?

transformers' Trainer does, by default: it logs a mean of earlier losses instead, so the printed loss looks fine while
the model is NaN already. Who gets an error told at a quiet-looking log should know.
"""

from __future__ import annotations

import sys
from types import FrameType


def what_hides_it() -> str | None:
    """A sentence if such a framework is on this thread's stack, with the setting that does it. Never raises.

    Asked once, when the first error is told. Imports nothing: an object on the stack has its module imported.
    """
    try:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            # Asking a frame for its locals may keep them all alive until it ends: not the user's own.
            theirs = str(frame.f_globals.get("__name__", "")).startswith("transformers.")
            if theirs and frame.f_code.co_varnames[:1] == ("self",) and _filters(frame.f_locals.get("self")):
                return "Trainer logs hide it: logging_nan_inf_filter=True replaces NaN losses in the log"
            frame = frame.f_back
    except Exception:  # somebody's attribute may do anything
        return None
    return None


def _filters(driver: object) -> bool:
    """Is it transformers' Trainer, or made from it, with the filter on?"""
    bases = type(driver).__mro__
    if not any(base.__name__ == "Trainer" and base.__module__.startswith("transformers.") for base in bases):
        return False
    return getattr(getattr(driver, "args", None), "logging_nan_inf_filter", False) is True
