"""Put the hooks on one model, and take them off again."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from nanscan.hooks import traced
from nanscan.hooks.core import ATTEND_BAD, CoreSession
from nanscan.hooks.module_hook import Hook, OuterCall, OuterHook, OuterPreHook, PreHook, RootHook, RootPreHook
from nanscan.sites import SiteTable

# Dropout makes no non-finite value of its own (it selects and scales by 1 / (1 - p)), and its planted zeros would
# drown the zero count and the norms of the layer before it, which is seen anyway.
SKIPPED_BY_DEFAULT: tuple[type[nn.Module], ...] = (_DropoutNd,)

_numbers = itertools.count(1)


def matches(name: str, module: nn.Module, filters: Iterable[str | type]) -> bool:
    """Does one of `filters` (name globs or Module subclasses) select this module?"""
    return any(fnmatchcase(name, f) if isinstance(f, str) else isinstance(module, f) for f in filters)


def is_callable_module(module: nn.Module) -> bool:
    """False for pure containers (ModuleList, ModuleDict), whose forward never runs."""
    return type(module).forward is not nn.Module.forward and not isinstance(module, torch.jit.ScriptModule)


class ModelHooks:
    """The hooks of one model.

    Args:
        model: what to watch.
        core: the session that records.
        sites: where the names go.
        skip, include: name globs or Module subclasses; `skip` adds to SKIPPED_BY_DEFAULT, `include` (None: everything)
            restricts the rest and overrides the default skip. The root is always hooked: its calls are the batches.
        begin: called before each forward of the root.
        attend: called with Tap.leave()'s bits when they are not 0.
        prefix: put before every module name (a second model watched by the same scanner).
        clock: do this model's root calls count as batches?
        taken: modules that carry this scanner's hooks already, as part of another model.
    """

    def __init__(
        self,
        model: nn.Module,
        core: CoreSession,
        sites: SiteTable,
        *,
        skip: tuple[str | type, ...] = (),
        include: tuple[str | type, ...] | None = None,
        begin: Callable[[], None],
        attend: Callable[[int], None],
        prefix: str = "",
        clock: bool = True,
        taken: Container[nn.Module] = (),
    ) -> None:
        self.core = core
        self.sites = sites
        self.number = next(_numbers)
        self.begin = begin
        self.attend = attend
        self.prefix = prefix
        self.clock = clock
        self.watched: dict[str, str] = {}  # module name -> class name
        self.skipped: dict[str, str] = {}
        self.parameters: list[str] = []
        self.buffers: list[str] = []
        self._handles: list[Any] = []
        self._base: dict[str, int] = {}
        self._root_pre: PreHook | RootPreHook | None = None
        self._outer_pre: OuterPreHook | None = None
        self._outer = OuterCall()
        self.lazy = False  # some parameter has no data yet
        traced.SESSIONS[self.number] = self
        for name, module in list(model.named_modules()):
            if module in taken:
                continue
            if self._wanted(name, module, skip, include):
                self._hook(name, module)
            elif is_callable_module(module):
                self.skipped[name] = type(module).__name__
        self.watch_tensors(model)

    def full_name(self, name: str) -> str:
        """The name users see: that of named_modules(), with the model's prefix if it has one."""
        return ".".join(part for part in (self.prefix, name) if part)

    def _wanted(
        self, name: str, module: nn.Module, skip: tuple[str | type, ...], include: tuple[str | type, ...] | None
    ) -> bool:
        if not is_callable_module(module):
            return False
        if name == "":
            return True
        if matches(name, module, skip):
            return False
        if include is not None:
            return matches(name, module, include)
        return not isinstance(module, SKIPPED_BY_DEFAULT)

    def _hook(self, name: str, module: nn.Module) -> None:
        root = name == "" and self.clock
        base = self.sites.add_module(self.full_name(name), type(module).__name__)
        self._base[name] = base
        self.watched[self.full_name(name)] = type(module).__name__
        # A module that writes its input in place must have it scanned first: afterwards it is gone.
        tap = self.core.tap(base, root=root, eager_inputs=bool(getattr(module, "inplace", False)))
        place = traced.Place(self.number, base, self._parent_site(name), root)
        pre = RootPreHook(tap.enter, self.begin, place, self._outer) if root else PreHook(tap.enter)
        if name == "":
            self._root_pre = pre
        self._handles.append(module.register_forward_pre_hook(pre, with_kwargs=True))
        post = RootHook(tap.leave, self.attend, place, self._outer) if root else Hook(tap.leave, self.attend, place)
        self._handles.append(module.register_forward_hook(post, with_kwargs=True, always_call=True))

    def hook_compiled(self, compiled: nn.Module) -> None:
        """Hook the OptimizedModule around the model as well: its calls are the batches, seen outside the graph."""
        base = self._base.get("")
        if base is None or not self.clock:
            return
        tap = self.core.tap(base, root=True)
        place = traced.Place(self.number, base, -1, True)
        pre = OuterPreHook(tap.enter, self.begin, place, self._outer)
        post = OuterHook(tap.leave, self.attend, place, self._outer)
        self._outer_pre = pre
        self._handles.append(compiled.register_forward_pre_hook(pre, with_kwargs=True))
        self._handles.append(compiled.register_forward_hook(post, with_kwargs=True, always_call=True))

    def _parent_site(self, name: str) -> int:
        """OUTPUT site of the nearest watched ancestor by name, -1 for none (compiled code has no call stack)."""
        while name:
            name = name.rpartition(".")[0]
            if name in self._base:
                return self._base[name]
        return -1

    def watch_tensors(self, model: nn.Module) -> None:
        """(Re)collect the parameters and floating buffers that are scanned as a whole."""
        self.parameters.clear()
        self.buffers.clear()
        self._own: dict[int, list[tuple[weakref.ref[torch.Tensor], int]]] = {}
        self.lazy = False
        modules = dict(model.named_modules(remove_duplicate=False))
        for name, parameter in model.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                self.lazy = True  # no data yet: collected once a forward has given it some
                continue
            owner = name.rpartition(".")[0]
            kind = type(modules[owner]).__name__ if owner in modules else None
            full = self.full_name(name)
            self.parameters.append(full)
            site = self.sites.add_parameter(full, self.full_name(owner), kind)
            self.core.watch(parameter, site, True)
            self._own.setdefault(self._base.get(owner, -1), []).append((weakref.ref(parameter), site))
        for name, buffer in model.named_buffers():
            if isinstance(buffer, UninitializedBuffer) or not (buffer.is_floating_point() or buffer.is_complex()):
                continue
            owner = name.rpartition(".")[0]
            full = self.full_name(name)
            self.buffers.append(full)
            site = self.sites.add_buffer(full, self.full_name(owner), type(modules[owner]).__name__)
            self.core.watch(buffer, site, False)

    def enter_root(self, model: nn.Module, args: Any) -> None:
        """Begin a call of the root that was under way when the hooks went on."""
        if self._root_pre is not None:
            self._root_pre(model, args, {})

    def enter_compiled(self, compiled: nn.Module, args: Any) -> None:
        """The same for a call of the OptimizedModule around it."""
        if self._outer_pre is not None:
            self._outer_pre(compiled, args, {})

    def traced_begin(self, site: int, inputs: list[torch.Tensor]) -> None:
        """Called by the op ``nanscan::begin`` when a compiled forward starts to run."""
        if not self._outer.depth:  # else the hooks of the compiled model's own call have said so
            self.begin()
            self.core.traced_begin(site, inputs)

    def traced_call(
        self, site: int, parent_site: int, root: bool, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        """Called by the op ``nanscan::observe`` when a module inside a compiled graph has run."""
        bad = self.core.traced_call(site, parent_site, root, inputs, outputs)
        if bad:
            for reference, parameter_site in self._own.get(site, ()):
                parameter = reference()
                if parameter is not None:
                    self.core.traced_parameter(parameter, parameter_site, site)
            if root:
                self.attend(ATTEND_BAD)

    def remove(self) -> None:
        """Take every hook off. Safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        traced.SESSIONS.pop(self.number, None)
