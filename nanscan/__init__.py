"""nanscan finds where a PyTorch program first goes numerically wrong, says why, and costs little enough to leave on.

    import nanscan
    scanner = nanscan.enable(model)   # train as before
    print(scanner.report())

Everything is loaded when it is first used: importing nanscan imports neither torch nor a compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanscan._version import __version__

if TYPE_CHECKING:
    from nanscan.errors import NanscanError, NanscanWarning, NonFiniteError, NonFiniteWarning
    from nanscan.events.event import Event
    from nanscan.record import TensorStats
    from nanscan.scanner.api import allow, check, disable, enable, scan, trace
    from nanscan.scanner.extension import extension
    from nanscan.scanner.scanner import Scanner

_HOME = {
    "allow": "nanscan.scanner.api",
    "check": "nanscan.scanner.api",
    "disable": "nanscan.scanner.api",
    "enable": "nanscan.scanner.api",
    "extension": "nanscan.scanner.extension",
    "scan": "nanscan.scanner.api",
    "trace": "nanscan.scanner.api",
    "Scanner": "nanscan.scanner.scanner",
    "Event": "nanscan.events.event",
    "TensorStats": "nanscan.record",
    "NanscanError": "nanscan.errors",
    "NanscanWarning": "nanscan.errors",
    "NonFiniteError": "nanscan.errors",
    "NonFiniteWarning": "nanscan.errors",
}

__all__ = [
    "Event",
    "NanscanError",
    "NanscanWarning",
    "NonFiniteError",
    "NonFiniteWarning",
    "Scanner",
    "TensorStats",
    "__version__",
    "allow",
    "check",
    "disable",
    "enable",
    "extension",
    "scan",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nanscan' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
