"""Names behind the 32-bit site ids that records carry.

A site is a place where values are seen: a module's output, the gradient that reaches it, a parameter, a check.
Hooks know only the id; whoever reads records looks the name up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

NO_SITE = 0xFFFFFFFF
MAX_CHECKS = 1024
MAX_EXTENSIONS = 1024


class SiteKind(IntEnum):
    """What is seen at a site. The first four are consecutive ids of one module, in this order."""

    OUTPUT = 0  # a module's forward output
    INPUT = 1  # a tensor a module was called with
    GRAD_OUTPUT = 2  # the gradient that reaches a module's output
    GRAD_INPUT = 3  # the gradient of a module's input
    PARAM = 4  # a parameter's value
    PARAM_GRAD = 5  # its .grad
    BUFFER = 6  # a floating buffer
    CHECK = 7  # nanscan.check(tensor, name)


N_MODULE_SITES = 4


@dataclass(frozen=True, slots=True)
class Site:
    """One place.

    Args:
        kind: what is seen there.
        module: name in named_modules(), "" for the root, None outside any module. Parameters and buffers: the owner's.
        module_type: class name of that module.
        tensor: full name of the parameter or buffer, or the name given to check().
        op: name of the wrapped extension's function that is called in that module, and has the four sites of a module.
    """

    kind: SiteKind
    module: str | None = None
    module_type: str | None = None
    tensor: str | None = None
    op: str | None = None

    @property
    def label(self) -> str:
        """How a person would call it: ``blocks.2.attn``, ``blocks.0.fc.weight.grad``, ``check 'loss'``."""
        if self.kind is SiteKind.CHECK:
            return f"check {self.tensor!r}"
        if self.kind is SiteKind.PARAM_GRAD:
            return f"{self.tensor}.grad"
        if self.tensor is not None:
            return self.tensor
        return self.op or self.module or (self.module_type or "(root)")


class SiteTable:
    """Append-only list of sites; the id of a site is its position."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._parameters: dict[str, int] = {}
        self._checks: dict[tuple[str, str | None], int] = {}
        self._extensions: dict[tuple[str, str | None], int] = {}

    def __len__(self) -> int:
        return len(self._sites)

    def __getitem__(self, site: int) -> Site:
        return self._sites[site]

    def add_module(self, name: str, module_type: str) -> int:
        """Reserve the four sites of a module; returns the id of its OUTPUT site."""
        return self._add_four(name, module_type)

    def add_extension(self, op: str, module: str | None, module_type: str | None = None) -> int:
        """The same for a wrapped function called inside `module`; the same pair gets the same id."""
        if (op, module) not in self._extensions and len(self._extensions) >= MAX_EXTENSIONS:
            op, module, module_type = "more extensions", None, None  # as for checks
        if (op, module) not in self._extensions:
            self._extensions[op, module] = self._add_four(module, module_type, op)
        return self._extensions[op, module]

    def _add_four(self, module: str | None, module_type: str | None, op: str | None = None) -> int:
        base = len(self._sites)
        for kind in (SiteKind.OUTPUT, SiteKind.INPUT, SiteKind.GRAD_OUTPUT, SiteKind.GRAD_INPUT):
            self._sites.append(Site(kind, module, module_type, op=op))
        return base

    def add_parameter(self, name: str, module: str | None, module_type: str | None) -> int:
        """Reserve PARAM and PARAM_GRAD of a parameter; returns the id of PARAM. The same name gets the same ids."""
        if name not in self._parameters:
            self._parameters[name] = len(self._sites)
            self._sites.append(Site(SiteKind.PARAM, module, module_type, name))
            self._sites.append(Site(SiteKind.PARAM_GRAD, module, module_type, name))
        return self._parameters[name]

    def add_buffer(self, name: str, module: str | None, module_type: str | None) -> int:
        """Reserve the site of a floating buffer."""
        self._sites.append(Site(SiteKind.BUFFER, module, module_type, name))
        return len(self._sites) - 1

    def add_check(self, name: str, module: str | None, module_type: str | None = None) -> int:
        """The site of ``check(tensor, name)`` called inside `module`; the same pair gets the same id."""
        if (name, module) not in self._checks and len(self._checks) >= MAX_CHECKS:
            name, module, module_type = "more checks", None, None  # names made up at run time must not grow the table
        key = (name, module)
        if key not in self._checks:
            self._checks[key] = len(self._sites)
            self._sites.append(Site(SiteKind.CHECK, module, module_type, name))
        return self._checks[key]
