"""Keep dynamo away from our own Python code.

When a compiled model is called, its root's hooks run as frames of their own that dynamo would compile one by one: three
graphs instead of one. Their code is marked as "run it, do not compile it", which does not stop dynamo from inlining the
same hook where it traces a caller. While our own code runs, frame evaluation is switched off altogether.

Private names of torch, each with a harmless substitute: without them the result is more graphs, never a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def _skip_code(code: Any) -> None:
    if hasattr(_frames, "set_code_exec_strategy"):
        action = _frames._FrameAction
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(_frames, "skip_code"):
        _frames.skip_code(code)


# callback -> the callback before; None switches frame evaluation off.
set_eval_frame: Callable[[Any], Any] = getattr(_frames, "set_eval_frame", lambda callback: None)


def run_uncompiled(function: F) -> F:
    """Never compile a frame of this function on its own."""
    _skip_code(function.__code__)
    return function
