"""Calls of code that no dispatcher sees: pybind and ctypes functions, Python functions that write through numpy.

A wrapper stands in for the user's function and tells every open scanner before and after a call. What the function was
given is looked at both times, since such code may write it, and the functions themselves are never changed.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any, Protocol

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from nanscan.hooks.core import Tap
from nanscan.hooks.dynamo import run_uncompiled
from nanscan.hooks.plain_values import leaves

_LOWEST = 1 << 16  # no memory is mapped below: a smaller number is a size or a flag

TensorAt = Callable[[int], torch.Tensor | None]


class ExtensionWatcher(Protocol):
    """What is told of calls."""

    def extension_tap(self, name: str) -> Tap | None: ...
    def tensor_at(self, address: int) -> torch.Tensor | None: ...
    def attend(self, news: int) -> None: ...


_watchers: list[ExtensionWatcher] = []


def add(watcher: ExtensionWatcher) -> None:
    """Start telling `watcher`."""
    _watchers.append(watcher)


def remove(watcher: ExtensionWatcher) -> None:
    """Stop telling it."""
    if watcher in _watchers:
        _watchers.remove(watcher)


class _Standin:
    """In the place of a user's object: everything but calls goes through to it. Its own names keep out of the way."""

    __wrapped__: Any
    _nanscan_name: str

    def __init__(self, wrapped: Any, name: str) -> None:
        attributes: tuple[str, ...] = functools.WRAPPER_ASSIGNMENTS
        face = {attribute: getattr(wrapped, attribute) for attribute in attributes if hasattr(wrapped, attribute)}
        vars(self).update(face, __wrapped__=wrapped, _nanscan_name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the original, so that it loads where nanscan is not installed."""
        return operator.itemgetter(0), ((self.__wrapped__,),)


class WrappedFunction(_Standin):
    """A function whose calls are seen."""

    @run_uncompiled
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not _watchers or is_dynamo_compiling():
            return self.__wrapped__(*args, **kwargs)
        return _watched_call(self.__wrapped__, self._nanscan_name, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a class attribute it is a method where the original is one: Python functions are, builtins are not."""
        binds = instance is not None and isinstance(self.__wrapped__, FunctionType)
        return MethodType(self, instance) if binds else self


class WrappedMembers(_Standin):
    """A module, a ctypes library or an object, whose functions are wrapped as they are asked for."""

    _nanscan_members: dict[str, WrappedFunction]

    def __init__(self, wrapped: Any, name: str) -> None:
        super().__init__(wrapped, name)
        vars(self).update(_nanscan_members={})

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__wrapped__, name)
        return value if name.startswith("__") else self._member(name, value)

    def __getitem__(self, name: Any) -> Any:
        return self._member(str(name), self.__wrapped__[name])

    def _member(self, name: str, value: Any) -> Any:
        if not callable(value) or isinstance(value, (type, _Standin, torch.nn.Module)):
            return value
        known = self._nanscan_members.get(name)
        if known is None or known.__wrapped__ is not value:
            known = self._nanscan_members[name] = WrappedFunction(value, f"{self._nanscan_name}::{name}")
        return known


@run_uncompiled
def _watched_call(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    taps = _begin(name, args, kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException:
        for _, tap, given in taps:
            tap.leave(None, given, None, None)
        raise
    _end(taps, result)
    return result


@run_uncompiled
def _begin(name: str, args: Any, kwargs: Any) -> list[tuple[ExtensionWatcher, Tap, tuple[torch.Tensor, ...]]]:
    taps = []
    for watcher in tuple(_watchers):
        tap = watcher.extension_tap(name)
        if tap is not None:
            given = tuple(memory_in((args, kwargs), watcher.tensor_at))
            tap.enter(given, None)
            taps.append((watcher, tap, given))
    return taps


@run_uncompiled
def _end(taps: list[tuple[ExtensionWatcher, Tap, tuple[torch.Tensor, ...]]], result: Any) -> None:
    # In a tuple: leave() takes None for a call that raised, and such functions often return nothing.
    results = tuple(tensor for tensor in memory_in(result, lambda address: None))
    news = [(watcher, tap.leave(None, given, None, results)) for watcher, tap, given in taps]
    for watcher, bits in news:
        if bits:
            watcher.attend(bits)


def memory_in(value: Any, tensor_at: TensorAt) -> Iterator[torch.Tensor]:
    """The tensors behind what a function is given or returns: tensors, numpy arrays, and addresses of known tensors."""
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, np.ndarray):
            # The tensor whose memory the array shares is the one that somebody will read.
            tensor = tensor_at(leaf.__array_interface__["data"][0]) if leaf.size else None
            tensor = _view_of(leaf) if tensor is None else tensor
            if tensor is not None:
                yield tensor
        else:
            address = _address_of(leaf)
            tensor = tensor_at(address) if address else None
            if tensor is not None:
                yield tensor


def _view_of(array: np.ndarray) -> torch.Tensor | None:
    if array.dtype.kind not in "fc":
        return None
    try:
        # torch warns of memory that it must not write; nobody else does either, so a copy shows the same.
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError):  # an element type or strides that torch does not know
        return None


def _address_of(value: Any) -> int:
    """The address a ctypes call would pass on, 0 if it is none."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value if _LOWEST <= value < 1 << 64 else 0
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else 0
