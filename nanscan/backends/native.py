"""The compiled core, by the first of two ways that works: built at install, or built now into the user's cache."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from nanscan._build import BuildError, built_for, recipe
from nanscan.backends.on_demand import core_from_cache
from nanscan.config import Settings

MODULE = "nanscan._C"


class NoCore(Exception):
    """No way led to the core. ``causes`` holds one line per way that was tried."""

    def __init__(self, causes: tuple[str, ...]) -> None:
        super().__init__("; ".join(causes))
        self.causes = causes


def load_core(settings: Settings) -> tuple[ModuleType, str]:
    """The core and where it came from, in words. Raises NoCore."""
    if MODULE in sys.modules:
        return sys.modules[MODULE], "loaded before"
    import torch  # the core needs torch's libraries in the process before its own

    causes = []
    try:
        return _prebuilt(str(torch.__version__)), "built at install"
    except (ImportError, OSError) as err:
        causes.append(f"built at install: {_one_line(err)}")
    try:
        if settings.build == "none":
            raise BuildError("switched off by NANSCAN_BUILD=none")
        path = core_from_cache(recipe(torch, os.environ), settings.cache_dir, os.environ)
        return _load(path), f"compiled on this machine ({path.parent})"
    except (BuildError, ImportError, OSError) as err:
        causes.append(f"compiled at first use: {_one_line(err)}")
    raise NoCore(tuple(causes))


def _prebuilt(torch_version: str) -> ModuleType:
    package = Path(__file__).absolute().parent.parent
    for suffix in EXTENSION_SUFFIXES:
        path = package / f"_C{suffix}"
        if path.is_file():
            break
    else:
        raise ImportError("this installation carries none for this Python")
    # Compared before loading: a core for another torch may take the process down, and its operators,
    # once registered, would clash with those of the core that fits.
    other = built_for(path)
    if other != torch_version:
        raise ImportError(f"it was built for torch {other or '(unknown)'}, this is torch {torch_version}")
    return _load(path)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    return module


def _one_line(err: BaseException) -> str:
    return " ".join(str(err).split())
