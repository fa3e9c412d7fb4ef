from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent

# A core as small as a core can be: loads in no time, knows no torch.
TINY_CORE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C() {
  PyObject* m = PyModule_Create(&module);
  PyModule_AddStringConstant(m, "torch_version", NANSCAN_TORCH_VERSION);
  return m;
}
"""


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return HERE.parent.parent


@pytest.fixture(scope="session")
def floors() -> ModuleType:
    """floors.py, by its path: under importlib mode test folders are not importable by name."""
    spec = importlib.util.spec_from_file_location("nanscan_floors", HERE / "floors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny_csrc(tmp_path: Path) -> Path:
    """A csrc folder whose core compiles in a second."""
    csrc = tmp_path / "csrc"
    csrc.mkdir()
    (csrc / "bindings.cpp").write_text(TINY_CORE)
    return csrc


@pytest.fixture
def bare_package(root: Path, tmp_path: Path, tiny_csrc: Path) -> Path:
    """A folder for PYTHONPATH with a copy of the package that has no prebuilt core, the tiny sources beside it."""
    shutil.copytree(root / "nanscan", tmp_path / "nanscan", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a process of its own, away from the repository, with nanscan's variables as given only."""

    def run(code: str, *, python: str = sys.executable, path: Path | None = None, **env: str):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("NANSCAN") and k != "PYTHONPATH"}
        clean |= {"NANSCAN_CACHE_DIR": str(tmp_path / "cache"), **env}
        if path is not None:
            clean["PYTHONPATH"] = str(path)
        return subprocess.run(
            [python, "-c", code], env=clean, cwd=tmp_path, text=True, capture_output=True, timeout=900
        )

    return run
