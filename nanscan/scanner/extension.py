"""nanscan.extension: calls of pybind, ctypes and numpy code become places with a name."""

from __future__ import annotations

import ctypes
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from nanscan.hooks.extension import WrappedFunction, WrappedMembers


def extension(obj: Any, name: str | None = None) -> Any:
    """Watch the calls of code that PyTorch does not see; use what this returns in the place of `obj`.

    What a call is given and what it returns is looked at before and after it, so that a NaN it made, or wrote into one
    of its arguments, is told with its name. Tensors are found in any nesting, behind numpy arrays, and behind addresses
    (``t.data_ptr()`` as an int, a ``ctypes.c_void_p`` or a pointer) of tensors that have been seen before. `obj` itself
    stays as it is; with no scanner open a call costs one ``if``.

    Args:
        obj: a function (pybind, ctypes, or a Python function that writes through numpy), or a module, ctypes library or
            object whose functions are to be watched.
        name: the calls are named ``name`` for a function, ``name::function`` for a member; by default obj's own name.

    Raises:
        TypeError: `obj` has no functions of that sort, or is watched by nanscan.enable() anyway.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"extension(name={name!r}): expected a non-empty string, such as 'mylib', or None")
    if isinstance(obj, (WrappedFunction, WrappedMembers)):
        return obj if name is None else type(obj)(obj.__wrapped__, name)
    if isinstance(obj, (type, torch.Tensor, np.ndarray, nn.Module)):
        raise _refused(obj)
    if callable(obj):
        return WrappedFunction(obj, name or _name_of(obj))
    if isinstance(obj, (ModuleType, ctypes.CDLL)) or _has_functions(obj):
        return WrappedMembers(obj, name or _name_of(obj))
    raise _refused(obj)


def _has_functions(obj: Any) -> bool:
    if type(obj).__module__ == "builtins":  # numbers, strings and containers have methods, and none that is meant
        return False
    names = (name for name in dir(obj) if not name.startswith("_"))
    return any(callable(inspect.getattr_static(obj, name, None)) for name in names)  # static: a property may do work


def _name_of(obj: Any) -> str:
    if isinstance(obj, ctypes.CDLL):
        return Path(obj._name).name.partition(".")[0] if obj._name else "process"
    return str(getattr(obj, "__name__", type(obj).__name__))


def _refused(obj: Any) -> TypeError:
    if isinstance(obj, nn.Module):
        way_out = "an nn.Module is watched by nanscan.enable(model)"
    elif isinstance(obj, type):
        way_out = "pass an instance, or the functions to be watched"
    else:
        way_out = "pass a function, a pybind module, a ctypes library or an object with functions"
    return TypeError(f"extension(obj={obj!r}): found {type(obj).__name__}; {way_out}")
