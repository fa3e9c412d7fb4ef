"""The models of one scanner: who is watched, whose optimizer it is, and every hook taken off at the end."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from nanscan import backends
from nanscan.backends import device as devices
from nanscan.backends import watching
from nanscan.errors import NanscanError, NanscanWarning
from nanscan.hooks import extension, optimizer_hook, scaler_hook
from nanscan.hooks.dynamo import run_uncompiled
from nanscan.hooks.model_hooks import ModelHooks, is_callable_module
from nanscan.scanner.reaction import warn_user
from nanscan.sites import NO_SITE

if TYPE_CHECKING:
    from nanscan.scanner.scanner import Scanner

# Which module is watched by which scanner. Two scanners on one module would scan everything twice and disagree about
# the batch, so that is refused; models that share nothing may each have their own.
_watched: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Scanner]] = weakref.WeakKeyDictionary()


def _compiled_root(model: nn.Module) -> nn.Module:
    """The module inside torch.compile(model); `model` itself if it is not compiled."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def _already_compiled(model: nn.Module) -> bool:
    """Has dynamo compiled this model's forward before these hooks were there? Then that code does not call them."""
    if getattr(model, "_orig_mod", None) is None and getattr(model, "_compiled_call_impl", None) is None:
        return False
    entries = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    wrapped = getattr(getattr(model, "forward", None), "_torchdynamo_orig_callable", None)
    # Private: without it there is no warning.
    compiled: Any = getattr(entries, "_debug_get_cache_entry_list", lambda code: [])
    # A class of torch.nn is compiled through a wrapper that all of them share: then "may have been" is all we can say.
    codes = (type(_compiled_root(model)).forward, wrapped)
    return any(compiled(code) for code in (getattr(f, "__code__", None) for f in codes) if code is not None)


class WatchedModels:
    """All hooks of one scanner.

    Args:
        scanner: who is told; held weakly by what outlives a call.
        model: the model to watch, or None: each outermost module that is called gets watched when it is first called.
            The first one with parameters drives the clock and keeps its plain names; names of a further one are
            prefixed with its class.
    """

    def __init__(self, scanner: Scanner, model: nn.Module | None) -> None:
        self._scanner = scanner
        self.hooks: list[ModelHooks] = []
        self._roots: list[weakref.ref[nn.Module]] = []  # of `hooks`, in the same order
        self._auto: Any = None
        # By id: tensors compare element-wise, so no set of them can be asked. The weak reference guards a reused id.
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self.notes: list[str] = []
        self.reader_notes: list[str] = []  # what reads tensors of devices, where it is not the CUDA library
        if model is not None:
            self.add(model)
        else:
            self._auto = register_module_forward_pre_hook(self._on_any_module)
            self.open_devices(devices.current())
        optimizer_hook.add(scanner)
        scaler_hook.add(scanner)
        extension.add(scanner)

    @property
    def any(self) -> bool:
        """Whether a model is watched."""
        return bool(self.hooks)

    def add(self, model: nn.Module, prefix: str = "", clock: bool = True) -> None:
        """Watch `model`. Raises NanscanError when one of its modules is watched already."""
        if _already_compiled(model):
            note = (
                "this model was compiled and may have run before enable(): code compiled earlier calls no hooks; "
                "call torch._dynamo.reset() after enable(), or enable() before the first call"
            )
            self.notes.append(note)
            warn_user(note, NanscanWarning)
        root = _compiled_root(model)
        options, scanner = self._scanner.options, self._scanner
        taken: set[nn.Module] = set()
        for name, module in root.named_modules():
            reference = _watched.get(module)
            owner = reference() if reference is not None else None
            if owner is scanner and self._auto is not None and module is not root:
                taken.add(module)
            elif owner is not None and not owner.closed:
                what = "the model" if name == "" else f"its module {name!r}"
                raise NanscanError(
                    f"enable(model={type(model).__name__}): {what} is already watched by an open scanner; "
                    "close() that one first, or pass a model that shares no module with it"
                )
        self.open_devices(devices.indices([*root.parameters(), *root.buffers()]))
        self.hooks.append(
            ModelHooks(
                root,
                scanner._core,
                scanner.sites,
                skip=options.skip,
                include=options.include,
                begin=scanner.forward_begins,
                attend=scanner.attend,
                prefix=prefix,
                clock=clock,
                taken=taken,
            )
        )
        reference = weakref.ref(scanner)
        for module in (model, *root.modules()):
            _watched[module] = reference
        self._roots.append(weakref.ref(root))
        self._note_parameters(root)
        if root is not model:
            self.hooks[-1].hook_compiled(model)
        scanner._owns.clear()

    def open_devices(self, indices: Iterable[int]) -> None:
        """Take the memory of the devices that are to be watched: inside a stream capture that could not be done."""
        core, native = self._scanner._core, backends.get().core
        for index in sorted(indices):
            why, note = watching.prepare(native, self._scanner._settings.backend, index)
            if note and note not in self.reader_notes:
                self.reader_notes.append(note)
                if native is not None:  # without a core that was said when it was found missing
                    warn_user(note, NanscanWarning)
            if why == "" and native is not None and not core.open_device(index):
                why = core.device_error
            note = f"tensors on cuda:{index} are counted, not read: {why}"
            if why and note not in self.notes:
                self.notes.append(note)

    def collect_lazy(self) -> None:
        """Parameters that a lazy module has made by now."""
        for hooks, reference in zip(self.hooks, self._roots, strict=True):
            root = reference()
            if hooks.lazy and root is not None:
                self._scanner._core.clear_watched()
                for other, other_reference in zip(self.hooks, self._roots, strict=True):
                    model = other_reference()
                    if model is not None:
                        other.watch_tensors(model)
                self._note_parameters(root)

    def _note_parameters(self, root: nn.Module) -> None:
        for parameter in root.parameters():
            if not isinstance(parameter, UninitializedParameter):
                self._parameters[id(parameter)] = weakref.ref(parameter)

    @run_uncompiled
    def _on_any_module(self, module: nn.Module, args: Any) -> None:
        """enable(None): the first call of an outermost module that is not watched yet."""
        if torch.compiler.is_compiling() or module in _watched or not is_callable_module(_compiled_root(module)):
            return
        if isinstance(module, torch.fx.GraphModule):
            return  # a compiler's own piece of a program, not a model
        if self._scanner.closed or self._scanner._core.current_site() != NO_SITE:
            return
        self._forget_the_dead()
        has_parameters = any(True for _ in module.parameters())
        clock = has_parameters and not any(h.clock for h in self.hooks)
        taken = {h.prefix for h in self.hooks}
        prefix = type(module).__name__
        number = 2
        while prefix in taken:
            prefix = f"{type(module).__name__}{number}"
            number += 1
        try:
            self.add(module, "" if clock else prefix, clock)
        except NanscanError:
            return  # another scanner watches a part of it
        if module is not _compiled_root(module):
            self.hooks[-1].enter_compiled(module, args)
        else:
            # torch has chosen the hooks of this call already. Arguments by keyword are not known here, this one time.
            self.hooks[-1].enter_root(module, args)

    def version(self) -> int:
        """Grows whenever a parameter is written in place (not through .data, which nobody counts)."""
        parameters = (reference() for reference in self._parameters.values())
        return sum(p._version for p in parameters if p is not None and not p.is_inference())

    def owns(self, optimizer: Optimizer) -> bool:
        """Is this optimizer's step a step of ours?

        One that shares a parameter with a watched model is. One that shares none with any open scanner's model (a
        master copy in another precision, a program without a model) is everybody's.
        """
        if self._shares(optimizer) or not self.hooks:
            return True
        others = {reference() for reference in set(_watched.values())} - {None, self._scanner}
        return not any(other._models._shares(optimizer) for other in others if other is not None and not other.closed)

    def _shares(self, optimizer: Optimizer) -> bool:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                reference = self._parameters.get(id(parameter))
                if reference is not None and reference() is parameter:
                    return True
        return False

    def _forget_the_dead(self) -> None:
        alive = [(h, r) for h, r in zip(self.hooks, self._roots, strict=True) if r() is not None]
        self.hooks, self._roots = [h for h, _ in alive], [r for _, r in alive]

    def abandon(self) -> None:
        """In a forked child: this process forgets the scanner. The hooks on the model stay, and do nothing."""
        _watched.clear()
        optimizer_hook.remove(self._scanner)
        scaler_hook.remove(self._scanner)
        extension.remove(self._scanner)
        if self._auto is not None:
            self._auto.remove()

    def remove(self) -> None:
        """Take every hook off."""
        if self._auto is not None:
            self._auto.remove()
            self._auto = None
        for hooks in self.hooks:
            hooks.remove()
        for module, reference in list(_watched.items()):
            if reference() is self._scanner:
                del _watched[module]
        optimizer_hook.remove(self._scanner)
        scaler_hook.remove(self._scanner)
        extension.remove(self._scanner)
