"""The build: package folders, the compiled core where torch is at hand, the CUDA library where nvcc is. Everything else
is in pyproject.toml.

torch is deliberately not a build requirement: pip's isolated build would fetch gigabytes of a torch that may not be the
one the core has to fit. Without torch here the core is left out, and compiled at first use instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).absolute().parent
CUDA = "nanscan.libnanscan_cuda"  # no Python module, but a compiled file of the package like one
NO_CUDA = "CUDA tensors will be read by Triton, else by plain PyTorch"
LATER = "compiled at first use instead (needs a C++ compiler and ninja), else nanscan runs on plain PyTorch"


def load_recipes() -> ModuleType:
    """nanscan/_build.py by its path: importing the package here would want its dependencies."""
    spec = importlib.util.spec_from_file_location("nanscan_build", ROOT / "nanscan" / "_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def import_torch() -> ModuleType | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns when numpy is not installed yet
        try:
            import torch
        except ImportError:
            return None
    return torch


class BuildCompiled(build_ext):
    """Hands each compiled file to its recipe; objects stay under build/, so a second build is incremental."""

    def get_ext_filename(self, name: str) -> str:
        if name.rpartition(".")[2] == CUDA.rpartition(".")[2]:
            return os.path.join(*name.split(".")[:-1], recipes.CUDA_LIBRARY)  # serves every Python
        return super().get_ext_filename(name)

    def build_extension(self, ext: Extension) -> None:
        try:
            built = build_cuda() if ext.name == CUDA else build_core()
        except recipes.BuildError as err:
            sys.stderr.write(err.output)
            give_up(ext.name, err)
            self.extensions = [other for other in self.extensions if other is not ext]  # nothing to copy or to list
            return
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".new")
        shutil.copy2(built, fresh)
        fresh.replace(target)  # a running program keeps the file it has mapped


def build_core() -> Path:
    recipe = recipes.recipe(torch, os.environ)
    folder = ROOT / "build" / f"core-{sys.implementation.cache_tag}-torch-{recipe.torch_version}"
    return recipes.compile_core(recipe, folder, os.environ)


def build_cuda() -> Path:
    return recipes.compile_cuda(recipes.csrc_dir(), ROOT / "build" / "cuda", os.environ)


def give_up(name: str, err: Exception) -> None:
    """An error where that file was asked for, else a line that says what happens instead."""
    if name == CUDA:
        if mode == "cuda":
            raise SystemExit(f"nanscan: NANSCAN_BUILD=cuda, but the CUDA library did not build: {err}") from None
        print(f"nanscan: the CUDA library did not build ({err}); {NO_CUDA}", file=sys.stderr)
        return
    if require:
        raise SystemExit(f"nanscan: NANSCAN_REQUIRE_NATIVE=1, but the core did not build: {err}") from None
    print(f"nanscan: the core did not build ({err}); {LATER}", file=sys.stderr)


recipes = load_recipes()
mode, require = recipes.read_build_env(os.environ)
torch = None if mode == "none" else import_torch()
if torch is None:
    reason = "NANSCAN_BUILD=none" if mode == "none" else "torch is not importable in the build environment"
    if require:
        raise SystemExit(f"nanscan: NANSCAN_REQUIRE_NATIVE=1, but the core cannot be built: {reason}")
    print(f"nanscan: the core is not built now ({reason}); {LATER}", file=sys.stderr)

extensions = [Extension("nanscan._C", sources=[])] if torch is not None else []
if mode in ("auto", "cuda"):
    try:
        recipes.find_nvcc(os.environ)
        extensions.append(Extension(CUDA, sources=[]))
    except recipes.BuildError as err:
        give_up(CUDA, err)

package_dir = {"nanscan": "nanscan", "nanscan._csrc": "csrc", "nanscan._examples": "examples"}
packages = [*find_packages(include=["nanscan", "nanscan.*"]), "nanscan._csrc", "nanscan._examples"]
if (ROOT / "triton_kernels").is_dir():
    # Only under our own name: the bare one belongs to a package of the Triton repository.
    package_dir["nanscan.triton_kernels"] = "triton_kernels"
    packages.append("nanscan.triton_kernels")

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={
        "nanscan": ["py.typed", "*.pyi"],
        "nanscan._csrc": ["**/*.h", "**/*.cpp", "**/*.cu", "**/*.cuh"],
        "nanscan._examples": ["**/*.py", "**/*.cpp"],
    },
    ext_modules=extensions,
    cmdclass={"build_ext": BuildCompiled},
)
