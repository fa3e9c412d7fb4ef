"""The public functions: enable, disable, scan, check, allow."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from nanscan import backends, config
from nanscan.backends.eager import UnscannableTensor
from nanscan.events.allow import Allowance, AllowList
from nanscan.events.event import Event
from nanscan.hooks import traced
from nanscan.record import TensorStats, stats_from_record
from nanscan.scanner.inert import InertScanner
from nanscan.scanner.scanner import Scanner
from nanscan.scanner.world import world_of

RING_CAPACITY = 1 << 15  # records: 4 MiB per scanner. A GPT step of 4 layers writes about 250.

_open: list[Scanner] = []
_open_lock = threading.Lock()
_allowed = AllowList()
_fork_guard = threading.Lock()
_fork_registered = False


def enable(
    model: nn.Module | None = None,
    *,
    level: str | None = None,
    on_anomaly: str | Callable[[Event], Any] | None = None,
    skip: Iterable[str | type] | str | type = (),
    include: Iterable[str | type] | str | type | None = None,
    every: int | None = None,
    schedule: Callable[[int], Any] | None = None,
    clock: str = "auto",
    max_events: int = 1000,
    escalate: bool = True,
    growth: Mapping[str, Any] | None = None,
    dir: str | os.PathLike[str] | None = None,
) -> Scanner:
    """Watch `model` for NaN, Inf and explosions from now on; train as before.

    Args:
        model: any nn.Module, compiled or not. None: every outermost module is watched from its first call.
        level: "module" (default), or "op": every op and autograd node, with its source line; one scanner at a time,
            and it needs the compiled core. The environment variable NANSCAN sets the default, NANSCAN=0 switches
            nanscan off.
        on_anomaly: "warn" (default; once per site, then at powers of ten), "raise" (NonFiniteError at the nearest safe
            point), "stop" (NonFiniteError at the next step's beginning), "record" (silent), or a callable that is
            handed each error and warning event.
        skip: modules not to hook: globs on names in named_modules(), or Module subclasses. Dropout is always left out
            unless `include` names it: it makes no non-finite value, and its planted zeros would drown the statistics.
        include: hook only these (the root is always hooked). None: all.
        every: scan every Nth step only.
        schedule: step -> bool (or torch.profiler.schedule(...)): is this step scanned? Or the level of this step,
            "module" or "op".
        clock: "auto": a step is over when a root forward begins after an optimizer's step; "manual": only
            scanner.step() ends one.
        max_events: events kept in memory per severity; the earliest stay, further ones are counted.
        escalate: at module level, watch the (scanned) steps after the first anomaly at op level, which names the op and
            its line if the trouble shows again: until it has been named, for 3 steps at most; then back. Left out
            without the compiled core and while another scanner observes ops.
        growth: settings of the explosion watch, such as {"threshold": 10, "warmup": 50}: those of
            nanscan.health.GrowthWatch.
        dir: folder for the event log, one JSON Lines file per process. None: no file.

    Returns:
        A Scanner; also a context manager.

    Raises:
        TypeError, ValueError: an argument that cannot be right; the message names it and the way out.
        NanscanError: the model, or a module of it, is already watched by an open scanner.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"enable(model={model!r}): expected a torch.nn.Module or None, found {type(model).__name__}; "
            "pass the model itself, not its parameters or output"
        )
    settings = config.read_env()
    options = config.check_options(
        level=level,
        on_anomaly=on_anomaly,
        every=every,
        schedule=schedule,
        clock=clock,
        max_events=max_events,
        escalate=escalate,
        dir=dir,
        skip=skip,
        include=include,
        settings=settings,
    )
    if settings.off:
        return InertScanner(options, settings)
    backend = backends.get()
    if backend.core is not None:
        core = backend.core.Session(RING_CAPACITY)
    else:
        from nanscan.hooks.plain import PlainSession

        core = PlainSession(RING_CAPACITY)
    _register_fork()
    scanner = Scanner(model, options, core, _allowed, settings, growth=growth, on_close=_forget)
    scanner.write_start(world_of(scanner, model, backend))
    with _open_lock:
        _open.append(scanner)
    return scanner


def trace(**options: Any) -> Scanner:
    """Watch every op of a block of code; no model needed: ``with nanscan.trace() as scanner: ...``.

    The same as ``enable(None, level="op", **options)``. Modules that are called in the block are found by themselves.
    """
    return enable(None, level="op", **options)


def disable() -> None:
    """Close every open scanner: no hook of nanscan is left in this process. Legal when none is open."""
    for scanner in tuple(_open):
        if not scanner.closed:
            scanner.close()


def scan(tensor: torch.Tensor) -> TensorStats:
    """Statistics of one tensor, now, in one read.

    Args:
        tensor: any floating or complex tensor, any strides, any number of elements.

    Raises:
        TypeError: not a tensor, or one that cannot be scanned (the message says why).
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"scan(tensor={tensor!r}): expected a torch.Tensor, found {type(tensor).__name__}")
    try:
        return stats_from_record(backends.get().scan_record(tensor))
    except UnscannableTensor as err:
        raise TypeError(f"scan(tensor of dtype {tensor.dtype}, {tensor.layout}): {err}") from None


def check(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A named checkpoint in your own code: `tensor` must be finite here (a loss outside every module, say).

    Every open scanner sees it; with none open it costs a function call. Returns `tensor`, so that it can be put around
    an expression. Legal inside torch.compile.
    """
    if torch.compiler.is_compiling():
        traced.check(tensor, name)
    elif _open:
        _check_now(tensor, name)
    return tensor


def _check_now(tensor: torch.Tensor, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"check(tensor={tensor!r}): expected a torch.Tensor, found {type(tensor).__name__}")
    if not isinstance(name, str) or not name:
        raise TypeError(f"check(name={name!r}): expected a non-empty string, such as 'loss'")
    for scanner in tuple(_open):
        scanner.check(tensor, name)


def allow(site_or_op: str, kinds: str | Iterable[str] | None = None) -> Allowance:
    """Declare values expected somewhere: they are counted, never alarmed, and hide no later culprit.

    Args:
        site_or_op: glob on a module's name, a parameter's or check's name, or an op.
        kinds: some of "nan", "inf", "+inf", "-inf" and the health kinds; None: all.

    Returns:
        A handle with `count` and `remove()`.
    """
    return _allowed.allow(site_or_op, kinds)


def open_scanners() -> tuple[Scanner, ...]:
    """The scanners that are open in this process."""
    return tuple(_open)


def _forget(scanner: Scanner) -> None:
    with _open_lock:
        if scanner in _open:
            _open.remove(scanner)


def _register_fork() -> None:
    """A forked child inherits hooks, ring and log file: there, all of it stays inert."""
    global _fork_registered
    with _fork_guard:
        if _fork_registered or not hasattr(os, "register_at_fork"):
            return
        os.register_at_fork(after_in_child=_go_inert)
        _fork_registered = True


def _go_inert() -> None:
    """In a forked child: the parent's scanners are over here, and the child may open its own."""
    global _open_lock
    _open_lock = threading.Lock()  # somebody may have held it at the fork
    for scanner in tuple(_open):
        scanner.abandon()
    _open.clear()


def _close_at_exit() -> None:
    """A program that never closes its scanners still gets its last step judged and its log ended."""
    for scanner in tuple(_open):
        with contextlib.suppress(Exception):
            scanner._finish()


atexit.register(_close_at_exit)
traced.on_check.append(_check_now)
