"""Run a script or a module the way ``python`` does, inside this process.

Same argv, ``__main__``, ``sys.path[0]``, traceback and exit code as without nanscan: a program must not notice who
started it. The standard library's runpy would do, but takes ``__main__`` away again before atexit functions run.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import Any


class Script:
    """What follows ``nanscan run``: ``script.py args``, or ``-m module args``.

    Args:
        command: those words.

    Raises FileNotFoundError or ModuleNotFoundError when there is nothing of that name to run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        name, *args = command[1:] if command[0] == "-m" else command
        self._spec: ModuleSpec | None = None
        if command[0] == "-m":
            _put_first(os.getcwd())
            self._spec = _find_module(name)
            self._argv = [self._spec.origin or name, *args]
        elif not os.path.exists(name):
            raise FileNotFoundError(f"no file {name!r} here ({os.getcwd()})")
        else:
            self._argv = [name, *args]
            self._path = os.path.abspath(name)
            self._spec = PathFinder.find_spec("__main__", [self._path])  # a folder or archive with a __main__.py
            _put_first(self._path if self._spec else os.path.dirname(os.path.realpath(name)))

    def run(self) -> None:
        """Run it to its end. Whatever it raises comes out of here."""
        sys.argv[:] = self._argv
        module = ModuleType("__main__")
        code, attributes = self._of_spec(self._spec) if self._spec else self._of_file(self._path)
        module.__dict__.update(attributes, __builtins__=builtins)
        sys.modules["__main__"] = module
        exec(code, module.__dict__)

    def _of_spec(self, spec: ModuleSpec) -> tuple[Any, dict[str, Any]]:
        loader: Any = spec.loader
        attributes = {"__spec__": spec, "__package__": spec.parent, "__loader__": loader}
        return loader.get_code(spec.name), attributes | {"__file__": spec.origin, "__cached__": spec.cached}

    def _of_file(self, path: str) -> tuple[Any, dict[str, Any]]:
        loader = (SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader)("__main__", path)
        if isinstance(loader, SourceFileLoader):  # not get_code(): that would leave byte code of a script in a cache
            code: Any = compile(loader.get_data(path), path, "exec", dont_inherit=True)
        else:
            code = loader.get_code("__main__")
        return code, {"__file__": path, "__cached__": None, "__loader__": loader, "__annotations__": {}}


def show(error: BaseException) -> None:
    """Print the traceback of what the script raised, as Python would: without the frames that ran it."""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and os.path.dirname(traceback.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _put_first(folder: str) -> None:
    # With PYTHONSAFEPATH or -P nothing was put in front, and nothing may be.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # something that a parent package imports
            raise
        spec = None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    return spec
