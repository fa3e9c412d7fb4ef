"""The border between our code and the user's program: only what they asked for crosses it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from nanscan.errors import NanscanWarning, NonFiniteError, NonFiniteWarning
from nanscan.hooks.dynamo import run_uncompiled, set_eval_frame

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """A hook into the user's program: only what they asked for gets out of it.

    A fault of ours is logged once, the scanner switches itself off, and training goes on.
    """

    @functools.wraps(method)
    @run_uncompiled
    def wrapper(self: Any, *args: Any) -> Any:
        if self._closed or os.getpid() != self._pid:
            return None
        frame_evaluation = set_eval_frame(None)
        try:
            with self._lock:
                return method(self, *args)
        except UserCallbackError as carried:
            raise carried.cause from None
        except (NonFiniteError, NonFiniteWarning, NanscanWarning) as wanted:  # warnings are errors where a user says so
            raise wanted from None
        except Exception as fault:
            self._fail(fault)
            return None
        finally:
            set_eval_frame(frame_evaluation)

    return wrapper  # type: ignore[return-value]


class UserCallbackError(Exception):
    """Carries what the user's own on_anomaly callable or schedule raised out through `guarded`."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause
