"""What nanscan.extension returns: it stands in for a function or a library, and the program cannot tell."""

from __future__ import annotations

import ctypes
import inspect
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nanscan
from nanscan.hooks import extension

LIBC = ctypes.CDLL(None)


def harmless(y: torch.Tensor) -> float:
    return float(y.detach().numpy().sum())


def spoil(y: torch.Tensor) -> None:
    """Writes into its argument."""
    y.detach().numpy()[0] = float("nan")


def test_without_a_scanner_nothing_of_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_watched_call", None)
    assert nanscan.extension(harmless)(torch.ones(2, 2)) == 4.0
    with nanscan.enable(nn.Linear(2, 2)), pytest.raises(TypeError):
        nanscan.extension(harmless)(torch.ones(2, 2))


def test_a_function_keeps_its_face() -> None:
    wrapped = nanscan.extension(spoil)
    assert (wrapped.__name__, wrapped.__doc__, repr(wrapped)) == ("spoil", spoil.__doc__, repr(spoil))
    assert inspect.signature(wrapped) == inspect.signature(spoil)
    assert wrapped.__wrapped__ is spoil
    assert pickle.loads(pickle.dumps(wrapped)) is spoil, "loads where nanscan is not installed"
    assert nanscan.extension(wrapped) is wrapped
    assert nanscan.extension(wrapped, "other").__wrapped__ is spoil


def test_a_library_keeps_its_face() -> None:
    lib = nanscan.extension(LIBC, "libc")
    assert lib.abs is lib.abs
    assert lib["abs"](-3) == lib.abs(-3) == 3
    lib.abs.restype = ctypes.c_int  # goes to the function itself
    assert LIBC.abs.restype is ctypes.c_int
    assert lib._name == LIBC._name
    assert dir(lib) == dir(LIBC)
    with pytest.raises(AttributeError):
        _ = lib.no_such_function


def test_members_of_a_module() -> None:
    module = ModuleType("lib")
    module.f, module.Kind, module.number = harmless, dict, 3
    lib = nanscan.extension(module)
    assert lib.f._nanscan_name == "lib::f"
    assert (lib.Kind, lib.number) == (dict, 3)
    module.f = spoil
    assert lib.f.__wrapped__ is spoil, "replaced in the original meanwhile"
    lib.number = 4
    assert module.number == 4
    assert nanscan.extension(lib) is lib


def test_methods_bind_as_the_original_would() -> None:
    class Holder:
        builtin = nanscan.extension(len)

        @nanscan.extension
        def method(self, y: int) -> tuple[Any, int]:
            return self, y

    holder = Holder()
    assert holder.method(3) == (holder, 3)
    assert holder.builtin([1, 2]) == 2


def test_an_object_with_functions() -> None:
    class Handle:
        scale = 2

        def run(self, y: float) -> float:
            return y * self.scale

    handle = nanscan.extension(Handle(), "handle")
    assert handle.run(3) == 6
    assert handle.run._nanscan_name == "handle::run"


@pytest.mark.parametrize("obj", [3, "lib", None, [len], torch.ones(2), np.ones(2), nn.Linear(2, 2), dict], ids=repr)
def test_refused_with_the_way_out(obj: Any) -> None:
    with pytest.raises(TypeError, match=r"extension\(obj=(.|\n)*found (.|\n)*; (pass|an nn.Module)"):
        nanscan.extension(obj)


@pytest.mark.parametrize("name", ["", 3])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"extension\(name="):
        nanscan.extension(harmless, name)


def test_inside_a_compiled_function() -> None:
    twice = nanscan.extension(lambda y: y * 2, "lib::twice")
    with nanscan.enable(nn.Linear(2, 2)):
        compiled = torch.compile(lambda y: twice(y) + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
