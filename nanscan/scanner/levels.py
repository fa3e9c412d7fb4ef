"""What a level means for a scanner: which origin analysis, and what the core observes."""

from __future__ import annotations

import os
from typing import Any

import torch

from nanscan.errors import NanscanError
from nanscan.events.allow import AllowList
from nanscan.hooks.core import CoreSession
from nanscan.hooks.op_rules import masks
from nanscan.origin import ModuleOrigin, OpOrigin
from nanscan.sites import SiteTable


def make_origin(
    level: str, sites: SiteTable, core: CoreSession, rank: int, allowed: AllowList
) -> ModuleOrigin | OpOrigin:
    """The judge for `level`."""
    if level == "module":
        return ModuleOrigin(sites, core.shape, rank, allow=allowed)
    native = _native()
    return OpOrigin(sites, core.shape, native.op_name, native.line_text, rank, allow=allowed)


def begin_level(level: str, core: CoreSession, has_model: bool) -> None:
    """Tell the core what to observe."""
    core.has_model = has_model
    if level != "op":
        return
    native = _native()
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    native.set_library_folders([own + os.sep, os.path.dirname(torch.__file__) + os.sep])
    native.set_op_rules(*masks())
    try:
        core.set_op_level(True)
    except ValueError:
        raise NanscanError(
            "level='op': another open scanner observes ops already, and they are observed for the whole process; "
            "close() that one first, or use level='module' here"
        ) from None


def _native() -> Any:
    from nanscan import backends

    native = backends.get().core
    if native is None:
        raise NanscanError(
            "level='op' needs the compiled core, and nanscan runs on plain PyTorch here "
            f"({backends.get().why}); mend that, or use level='module'"
        )
    return native
