"""Module hooks inside a compiled graph: one registered op per module call.

The op mutates a token tensor, so that neither dead-code elimination nor reordering touches it; it has a fake
implementation and no Python truth test, so ``torch.compile(fullgraph=True)`` keeps one graph. Registered through
``Library.define``/``impl``: ``torch.library.custom_op`` costs about four times as much per call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch


class TracedSession(Protocol):
    """What the ops call at run time."""

    def traced_begin(self, site: int, inputs: list[torch.Tensor]) -> None: ...

    def traced_call(
        self, site: int, parent_site: int, root: bool, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Which module of which session. Plain numbers: they become constants of the graph.

    Args:
        session: key in SESSIONS.
        site: the module's OUTPUT site.
        parent_site: OUTPUT site of the nearest enclosing watched module by name, -1 for none.
        root: is it the model itself?
    """

    session: int
    site: int
    parent_site: int
    root: bool


# Sessions by number: a graph can hold an int but not an object. Weak: a graph kept in dynamo's cache keeps no session.
SESSIONS: WeakValueDictionary[int, TracedSession] = WeakValueDictionary()

# Where a check() inside a graph goes at run time; set by the scanner package, which lives above this floor.
on_check: list[Callable[[torch.Tensor, str], None]] = []

# [1] uint8; what the ops claim to write. A module global, so that dynamo lifts it to a graph input.
TOKEN = torch.zeros(1, dtype=torch.uint8)

_LIBRARY = torch.library.Library("nanscan", "DEF")
_LIBRARY.define("begin(Tensor(a!) token, Tensor[] inputs, int session, int site) -> ()")
_LIBRARY.define(
    "observe(Tensor(a!) token, Tensor[] inputs, Tensor[] outputs, int session, int site, int parent_site, bool root)"
    " -> ()"
)
_LIBRARY.define("check(Tensor(a!) token, Tensor value, str name) -> ()")


def _begin_impl(token: torch.Tensor, inputs: list[torch.Tensor], session: int, site: int) -> None:
    owner = SESSIONS.get(session)
    if owner is not None:
        owner.traced_begin(site, inputs)


def _observe_impl(
    token: torch.Tensor,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    session: int,
    site: int,
    parent_site: int,
    root: bool,
) -> None:
    owner = SESSIONS.get(session)
    if owner is not None:
        owner.traced_call(site, parent_site, root, inputs, outputs)


def _check_impl(token: torch.Tensor, value: torch.Tensor, name: str) -> None:
    for receive in on_check:
        receive(value, name)


_LIBRARY.impl("check", _check_impl, "CompositeExplicitAutograd")
_LIBRARY.impl("begin", _begin_impl, "CompositeExplicitAutograd")
_LIBRARY.impl("observe", _observe_impl, "CompositeExplicitAutograd")
torch.library.register_fake("nanscan::check", lambda token, value, name: None, lib=_LIBRARY)
torch.library.register_fake("nanscan::begin", lambda token, inputs, session, site: None, lib=_LIBRARY)
torch.library.register_fake(
    "nanscan::observe", lambda token, inputs, outputs, session, site, parent_site, root: None, lib=_LIBRARY
)


def _collect(value: Any, into: list[torch.Tensor], keep: Callable[[torch.Tensor], bool]) -> None:
    """The floating tensors in any nesting of tuple, list, dict and dataclass. Traced by dynamo: plain Python only."""
    if isinstance(value, torch.Tensor):
        if keep(value):
            into.append(value.detach())
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, into, keep)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, into, keep)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _collect(getattr(value, field.name), into, keep)


def _floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def begin(place: Place, args: Any, kwargs: Any) -> None:
    """The root's forward begins, inside a graph."""
    inputs: list[torch.Tensor] = []
    _collect(args, inputs, _floating)
    _collect(kwargs, inputs, _floating)
    torch.ops.nanscan.begin(TOKEN, inputs, place.session, place.site)


def observe(place: Place, args: Any, kwargs: Any, output: Any) -> None:
    """A module's forward ended, inside a graph. Its inputs ride along: they are read only if an output is bad."""
    outputs: list[torch.Tensor] = []
    _collect(output, outputs, _floating)
    if not outputs:
        return
    inputs: list[torch.Tensor] = []
    _collect(args, inputs, _floating)
    _collect(kwargs, inputs, _floating)
    torch.ops.nanscan.observe(TOKEN, inputs, outputs, place.session, place.site, place.parent_site, place.root)


def check(tensor: torch.Tensor, name: str) -> None:
    """A named checkpoint inside a graph."""
    torch.ops.nanscan.check(TOKEN, tensor.detach(), name)
