"""The facts of a run that the log's first line holds."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nanscan._version import __version__
from nanscan.backends import Backend

if TYPE_CHECKING:
    from nanscan.scanner.scanner import Scanner


def world_of(scanner: Scanner, model: nn.Module | None, backend: Backend) -> dict[str, Any]:
    """Versions, host and what is watched. Plain JSON values."""
    settings = scanner._settings
    hooks = scanner._models.hooks
    return {
        "nanscan": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "argv": sys.argv[:1],
        "rank": settings.rank,
        "world_size": settings.world_size,
        "restart": settings.restart,
        "backend": backend.name,
        "level": scanner.options.level,
        "every": scanner.options.every,
        "model": None if model is None else type(model).__name__,
        "n_modules": sum(len(h.watched) for h in hooks),
        "n_params": sum(len(h.parameters) for h in hooks),
        "time": time.time(),
    }
