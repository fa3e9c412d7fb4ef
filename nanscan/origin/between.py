"""Which calls the source has between two lines: where memory may have been written without the dispatcher.

Reads the source and looks names up in modules that are loaded already; imports nothing and runs no code of the user's.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

MAX_CALLS = 3
MAX_WIDTH = 60

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NESTED = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)  # what is in there does not run where it stands
# Libraries whose calls are seen, or touch no tensor's memory. ctypes is of the standard library too, and the exception.
_HARMLESS = (frozenset(sys.stdlib_module_names) - {"ctypes", "_ctypes"}) | {"torch", "nanscan"}


def calls_between(clean: str, read: str) -> str | None:
    """``in between the source calls: lib.scale_into(y, out) (line 41)``, or None where nothing can be said.

    Args:
        clean: ``path:line`` where the memory was last written. read: where it was read and found bad.
    """
    try:
        return _between(*_parts(clean), *_parts(read))
    except Exception:  # source that is not there, is not Python, or is not what runs: the event is told without it
        return None


def _parts(place: str) -> tuple[str, int]:
    path, _, line = place.rpartition(":")
    return path, int(line)


def _between(clean_path: str, clean_line: int, path: str, line: int) -> str | None:
    written, read = _scope_at(clean_path, clean_line), _scope_at(path, line)
    if written == read:
        calls = _told(read, clean_line, line)
        return calls and f"in between the source calls: {calls}"
    # Two functions: how the program came from one to the other is not known, only what each of them says.
    after, before = _told(written, clean_line, written.last), _told(read, read.first, line)
    parts = (
        after and written.function and f"after the write {written.name} calls: {after}",
        before and read.function and f"before the read {read.name} calls: {before}",
    )
    return "; ".join(part for part in parts if part) or None


@dataclass(frozen=True)
class _Scope:
    """A function of a file, or what stands outside of all. Two are the same if file and lines are."""

    path: str
    name: str
    first: int
    last: int
    function: bool
    body: tuple[ast.stmt, ...] = field(compare=False)
    parameters: frozenset[str] = field(compare=False)


@dataclass(frozen=True)
class _Call:
    line: int
    text: str
    raw: bool  # known to be code that PyTorch cannot see into


def _scope_at(path: str, line: int) -> _Scope:
    """The innermost function around a line."""
    text = linecache.getlines(path)
    tree = ast.parse("".join(text))
    scope = _Scope(path, "", 1, len(text), False, tuple(tree.body), frozenset())
    todo: list[tuple[str, ast.AST]] = [("", node) for node in tree.body]
    for prefix, node in todo:
        name = prefix
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{prefix}{node.name}."
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            a = node.args
            every = (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))
            parameters = frozenset(arg.arg for arg in every)
            last = node.end_lineno or node.lineno
            scope = _Scope(path, name[:-1], node.lineno, last, True, tuple(node.body), parameters)
        todo += [(name, child) for child in ast.iter_child_nodes(node)]
    return scope


def _told(scope: _Scope, first: int, last: int) -> str | None:
    """The calls of these lines, in words; what is certain to be unseen before what is not known."""
    calls = [call for call in _calls(scope) if first <= call.line <= last]
    # On the two lines themselves there are the writer and the reader as well.
    calls = [call for call in calls if call.raw or first < call.line < last]
    shown = sorted(sorted(calls, key=lambda call: not call.raw)[:MAX_CALLS], key=lambda call: call.line)
    text = ", ".join(f"{call.text} (line {call.line})" for call in shown)
    more = len(calls) - len(shown)
    return (text + (f" and {more} more" if more else "")) or None


def _calls(scope: _Scope) -> list[_Call]:
    nodes = list(_running(scope.body))
    local = set(scope.parameters)
    if scope.function:  # outside of all, a program's own names are its globals
        local |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        local |= {node.name for node in nodes if isinstance(node, _FUNCTIONS)}
    names = _globals_of(scope.path)
    found: list[_Call] = []
    inside: set[ast.AST] = set()  # of a call that is listed whole
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        raw = _is_raw(node.func, names, local)
        if raw is None or (node in inside and not raw):
            continue
        inside.update(ast.walk(node))
        text = textwrap.shorten(ast.unparse(node), MAX_WIDTH, placeholder=" ...")
        found.append(_Call(node.lineno, text, raw))
    return found


def _running(body: tuple[ast.stmt, ...]) -> Iterator[ast.AST]:
    """Every node that runs with the function, in order of the source."""
    todo: list[ast.AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _NESTED):
            todo += reversed(list(ast.iter_child_nodes(node)))


def _is_raw(function: ast.expr, names: Mapping[str, Any], local: set[str]) -> bool | None:
    """True for code that PyTorch cannot see into, None for what it sees or what touches no tensor; False: not known."""
    path: list[str] = []
    while isinstance(function, ast.Attribute):
        path.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id in local:  # a method of a value, or a function in a variable
        return None if path and hasattr(getattr(sys.modules.get("torch"), "Tensor", None), path[-1]) else False
    if function.id not in names:
        return None if hasattr(builtins, function.id) else False
    value = names[function.id]
    for name in path:
        value = _unwrapped(value)
        if not isinstance(value, ModuleType):
            break
        if _top(value.__name__) in _HARMLESS:
            return None
        value = vars(value).get(name)
    return _is_raw_value(_unwrapped(value))


def _is_raw_value(value: Any) -> bool | None:
    owner = _attribute(value, "__self__")
    homes = [_attribute(thing, "__module__") for thing in (value, type(value), owner)]
    homes.append(owner.__name__ if isinstance(owner, ModuleType) else None)
    homes = [_top(home) for home in homes if isinstance(home, str) and home != "builtins"]
    if isinstance(value, ctypes.CDLL) or not {"ctypes", "_ctypes", "numpy"}.isdisjoint(homes):
        return True
    if homes and _HARMLESS.issuperset(homes):
        return None
    compiled = isinstance(vars(type(value)).get("__call__"), WrapperDescriptorType)
    return compiled and not isinstance(value, (FunctionType, MethodType, type))


def _unwrapped(value: Any) -> Any:
    """What functools.wraps, or nanscan.extension, has put something in front of."""
    wrapped = _attribute(value, "__wrapped__")
    return value if wrapped is None else wrapped


def _attribute(value: Any, name: str) -> Any:
    """An attribute that is there, without a property or a __getattr__ of the user's."""
    if isinstance(value, type):
        return type.__dict__[name].__get__(value) if name in type.__dict__ else vars(value).get(name)
    found = inspect.getattr_static(value, name, None)
    return found.__get__(value) if isinstance(found, (GetSetDescriptorType, MemberDescriptorType)) else found


def _top(module: str) -> str:
    return module.partition(".")[0]


def _globals_of(path: str) -> Mapping[str, Any]:
    """Of the loaded module that was read from this file; where there is none (a notebook's cell), of the program."""
    wanted = os.path.abspath(path)
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and os.path.abspath(file) == wanted:
            return vars(module)
    return vars(sys.modules["__main__"])
