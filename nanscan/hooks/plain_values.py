"""What a plain session's hooks keep per thread, and how they walk a module's arguments.

Twin of values.h, thread_state.h and tree.cpp in csrc/hooks.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from nanscan.record import DType
from nanscan.sites import NO_SITE

MAX_INPUTS = 12  # tensors remembered per call; further ones are scanned afresh when it goes bad
MAX_PARTIES = 6  # a value read by more modules than this keeps its first readers
MAX_SEEN = 1024  # values remembered per thread; the oldest goes first, which costs one more scan
MAX_DEPTH = 16  # of nesting, so that a self-containing list ends


class Switch:
    """A boolean that every hook module shares."""

    on = False


INERT = Switch()  # set in a forked child and at interpreter exit: nobody would ever drain the records


@dataclass(slots=True, frozen=True)
class Party:
    """A module call that made or read a value; `site` is its OUTPUT (maker) or INPUT (reader) site."""

    site: int
    call: int
    parent_call: int
    parent_site: int


class GradTap:
    """What is known of one value whose gradient is watched. Holds no tensor and no node."""

    __slots__ = ("__weakref__", "makers", "readers", "session", "step", "value")

    def __init__(self, session: Any) -> None:
        self.session = session
        self.value: int = session.new_call()  # id, from the same counter as calls
        self.step: int = session.step  # in which it was made
        self.makers: list[Party] = []
        self.readers: list[Party] = []

    def add_maker(self, party: Party) -> None:
        if len(self.makers) < MAX_PARTIES:
            self.makers.append(party)

    def add_reader(self, party: Party) -> None:
        if len(self.readers) < MAX_PARTIES:
            self.readers.append(party)


@dataclass(slots=True)
class SeenValue:
    """One value seen lately. The reference and the version identify it."""

    ref: weakref.ref[torch.Tensor]
    version: int
    site: int = NO_SITE  # where it was seen last (an OUTPUT or INPUT site)
    call: int = 0
    scanned: bool = False  # False: only its gradient is tapped so far
    bad_counts: tuple[int, int, int] = (0, 0, 0)  # NaN, +Inf, -Inf
    tap: GradTap | None = None

    @property
    def bad(self) -> bool:
        return any(self.bad_counts)

    def remember(self, record: Any) -> None:
        """Its statistics were just taken."""
        self.site = int(record["site"][0])
        self.call = int(record["call"][0])
        self.scanned = True
        self.bad_counts = bad_counts(record)


@dataclass(slots=True)
class SeenInput:
    """A tensor that a module was called with, as it was at the call."""

    ref: weakref.ref[torch.Tensor]
    version: int
    site: int = NO_SITE  # where it had been seen before
    call: int = 0
    known: bool = False  # some other call, or the data, handed it over
    counted: bool = False  # the counts below are its state before the call
    bad_counts: tuple[int, int, int] = (0, 0, 0)
    changed: bool = False  # an extension's: went bad between its last sighting and this call, with no write seen
    written: bool = False  # an extension's: by this call
    before: Any = None  # an extension's: the record of it as the call began


@dataclass(slots=True)
class Frame:
    """A watched module call that is running."""

    session: Any
    site: int  # the module's OUTPUT site
    call: int
    parent_call: int
    parent_site: int
    inputs: list[SeenInput] = field(default_factory=list)
    # A leaf holds its AccumulateGrad node weakly: until this call's forward has built a graph on the leaf, nothing else
    # keeps the node, and our hook on it, alive.
    nodes: list[Any] = field(default_factory=list)


class SeenValues:
    """The values a thread has seen lately, by tensor and session."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], SeenValue] = {}

    def find(self, tensor: torch.Tensor, session: Any) -> SeenValue | None:
        """What is known of this very value; None if nothing, or if it was written since."""
        seen = self._entries.get((id(tensor), session.number))
        # An id can be taken over by a new tensor: the weak reference tells.
        if seen is None or seen.ref() is not tensor or seen.version != version_of(tensor):
            return None
        return seen

    def put(self, tensor: torch.Tensor, session: Any) -> SeenValue:
        """A fresh entry for the tensor as it is now."""
        key = (id(tensor), session.number)
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_SEEN:
            del self._entries[next(iter(self._entries))]
        seen = self._entries[key] = SeenValue(weakref.ref(tensor), version_of(tensor))
        return seen

    def containing(self, address: int, session: Any) -> torch.Tensor | None:
        """The value whose memory this address points into."""
        for (_, number), seen in list(self._entries.items()):
            tensor = seen.ref() if number == session.number else None
            if tensor is None or tensor.layout != torch.strided or tensor.device.type != "cpu":
                continue
            with contextlib.suppress(RuntimeError, NotImplementedError):  # no storage that anybody may read
                storage = tensor.untyped_storage()
                if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
                    return tensor
        return None

    def forget(self, session: Any) -> None:
        """Drop what was seen for `session`; taps would keep it alive."""
        for key in [key for key in self._entries if key[1] == session.number]:
            del self._entries[key]

    def clear(self) -> None:
        self._entries.clear()


class ThreadState(threading.local):
    """The calling thread's stack of module calls and its seen values."""

    def __init__(self) -> None:
        self.inside = 0
        self.stack: list[Frame] = []
        self.values = SeenValues()

    def top(self, session: Any) -> Frame | None:
        """The innermost frame of `session`, None outside its modules."""
        return next((frame for frame in reversed(self.stack) if frame.session is session), None)


STATE = ThreadState()


class InsideHook:
    """One level of "we are inside a hook" for the calling thread: observing that would be observing ourselves."""

    __slots__ = ("reentered",)

    def __enter__(self) -> InsideHook:
        self.reentered = STATE.inside > 0
        STATE.inside += 1
        return self

    def __exit__(self, *exception: object) -> None:
        STATE.inside -= 1


def version_of(tensor: torch.Tensor) -> int:
    """torch's version counter, or 0 where reading it throws (inference tensors have none)."""
    return 0 if tensor.is_inference() else tensor._version


_CONTENT = ("n_nan", "n_posinf", "n_neginf", "n_zero", "n_subnormal", "min", "max", "mean", "m2", "first_bad")


def same_content(a: Any, b: Any) -> bool:
    """Whether two looks at one tensor saw the same content, as far as statistics can tell."""
    return all(a[name].tobytes() == b[name].tobytes() for name in _CONTENT)


def bad_counts(record: Any) -> tuple[int, int, int]:
    """NaN, +Inf, -Inf of a record."""
    return int(record["n_nan"][0]), int(record["n_posinf"][0]), int(record["n_neginf"][0])


def dtype_of(tensor: torch.Tensor) -> DType:
    """The record's name for the element type."""
    return DType.from_torch_name(str(tensor.dtype))


def device_of(tensor: torch.Tensor) -> int:
    """CUDA ordinal, -1 for the CPU."""
    return tensor.device.index if tensor.is_cuda else -1


def in_backward() -> bool:
    """Is the autograd engine running on this thread?"""
    return torch._C._current_graph_task_id() >= 0


def wants_gradient(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in any nesting of tuple, list, dict and dataclass, in order."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """What any nesting of tuple, list, dict and dataclass holds, in order."""
    if value is None or depth > MAX_DEPTH:
        return
    if isinstance(value, (torch.Tensor, int, float, str, bytes, type)):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in list.copy(value) if isinstance(value, list) else tuple.__iter__(value):
            yield from leaves(item, depth + 1)
    elif isinstance(value, dict):  # also OrderedDict and the ModelOutput classes, which are dicts
        for item in list(dict.values(value)):  # of dict itself: a subclass may answer with something else
            yield from leaves(item, depth + 1)
    else:
        # A dataclass instance: the fields are found on its type.
        try:
            names = list(type(value).__dataclass_fields__)
        except Exception:
            yield value
            return
        for name in names:
            try:
                item = getattr(value, name)
            except Exception:  # a field without a value, or a property that fails: not ours to report
                continue
            yield from leaves(item, depth + 1)
