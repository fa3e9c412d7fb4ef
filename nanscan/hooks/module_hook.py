"""The Python half of a module's forward hooks.

Small objects that make one call into the core per module call. Under torch.compile they take the branch that calls a
registered op instead (nanscan.hooks.traced), so that a compiled model stays one graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from nanscan.hooks import traced
from nanscan.hooks.dynamo import run_uncompiled


class _Hook:
    """A hook that is alive in one process and for one model only.

    A copied or pickled model must carry no live hook and must load where nanscan is not installed, so a hook reduces to
    a stdlib callable that takes anything and returns None: the ``__exit__`` of a nullcontext.
    """

    __slots__ = ("__weakref__",)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nullcontext().__exit__

    def __copy__(self) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class OuterCall(threading.local):
    """Is a compiled model's own call running on this thread? Its hooks sit on the OptimizedModule, outside the graph.

    The same hooks sit on the module inside too, for those who call that one directly, and stay quiet here.
    """

    depth = 0


class PreHook(_Hook):
    """Before a module's forward."""

    __slots__ = ("enter",)

    def __init__(self, enter: Callable[[Any, Any], None]) -> None:
        self.enter = enter

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():
            self.enter(args, kwargs)


class RootPreHook(_Hook):
    """Before the root's forward: a step may have ended, a batch begins."""

    __slots__ = ("begin", "enter", "outer", "place")

    def __init__(
        self, enter: Callable[[Any, Any], None], begin: Callable[[], None], place: traced.Place, outer: OuterCall
    ) -> None:
        self.enter = enter
        self.begin = begin
        self.place = place
        self.outer = outer

    @run_uncompiled
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            traced.begin(self.place, args, kwargs)
        elif not self.outer.depth:
            self.begin()
            self.enter(args, kwargs)


class OuterPreHook(RootPreHook):
    """The same on an OptimizedModule."""

    __slots__ = ()

    @run_uncompiled
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():
            self.begin()
            self.enter(args, kwargs)
            self.outer.depth += 1


class Hook(_Hook):
    """After a module's forward; also called with ``output=None`` when it raised (always_call)."""

    __slots__ = ("attend", "leave", "place")

    def __init__(
        self, leave: Callable[[Any, Any, Any, Any], int], attend: Callable[[int], None], place: traced.Place
    ) -> None:
        self.leave = leave
        self.attend = attend
        self.place = place

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_dynamo_compiling():
            traced.observe(self.place, args, kwargs, output)
        else:
            news = self.leave(module, args, kwargs, output)
            if news:
                self.attend(news)


class RootHook(Hook):
    """After the root's forward: the same, never compiled as a frame of its own."""

    __slots__ = ("outer",)

    def __init__(
        self,
        leave: Callable[[Any, Any, Any, Any], int],
        attend: Callable[[int], None],
        place: traced.Place,
        outer: OuterCall,
    ) -> None:
        super().__init__(leave, attend, place)
        self.outer = outer

    @run_uncompiled
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_dynamo_compiling():
            traced.observe(self.place, args, kwargs, output)
        elif not self.outer.depth:
            news = self.leave(module, args, kwargs, output)
            if news:
                self.attend(news)


class OuterHook(RootHook):
    """The same on an OptimizedModule."""

    __slots__ = ()

    @run_uncompiled
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_dynamo_compiling():
            return
        self.outer.depth = max(0, self.outer.depth - 1)
        news = self.leave(getattr(module, "_orig_mod", module), args, kwargs, output)
        if news:
            self.attend(news)
