"""Cause or carrier: which record of a step is the first bad one, and who made it."""

from __future__ import annotations

from nanscan.origin.module_level import ModuleOrigin
from nanscan.origin.op_level import OpOrigin

__all__ = ["ModuleOrigin", "OpOrigin"]
