"""nanscan/_C.pyi names exactly what the compiled core has: no more, no less."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from nanscan import backends

STUB = Path(__file__).parents[2] / "nanscan" / "_C.pyi"


def stub_names(body: list[ast.stmt]) -> set[str]:
    """Public names that statements of a stub define."""
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            assert isinstance(node.target, ast.Name)
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def stub_class(name: str) -> ast.ClassDef:
    return next(n for n in ast.parse(STUB.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name)


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.fixture(scope="module")
def core():
    core = backends.get().core
    if core is None:
        pytest.skip("there is no compiled core here")
    return core


def test_the_module_has_the_names_of_the_stub(core) -> None:
    assert stub_names(ast.parse(STUB.read_text()).body) == public(core)


def test_the_session_has_the_names_of_the_stub(core) -> None:
    assert stub_names(stub_class("Session").body) == public(core.Session)


def test_a_tap_has_the_names_of_the_stub(core) -> None:
    assert stub_names(stub_class("_ModuleTap").body) == public(core.Session(64).tap(0))


def test_arguments_are_called_as_in_the_stub(core) -> None:
    """pybind puts the argument names into the first line of the docstring, where the binding gives them names."""
    checked = 0
    for owner, body in ((core, ast.parse(STUB.read_text()).body), (core.Session, stub_class("Session").body)):
        for node in body:
            signature = inspect.getdoc(getattr(owner, getattr(node, "name", ""), None)) or ""
            if not isinstance(node, ast.FunctionDef) or not signature or "arg0" in signature:
                continue
            names = [a.arg for a in node.args.args if a.arg != "self"]
            assert all(f"{name}:" in signature.splitlines()[0] for name in names), (node.name, names, signature)
            checked += 1
    assert checked > 10
