"""The core session in plain Python and PyTorch: the last resort where no compiler exists, the oracle where one does.

Twin of session.cpp and traced_call.cpp: the same records in the same order, only much slower.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nanscan.backends.eager import UnscannableTensor, scan_record
from nanscan.hooks.plain_record import Writer
from nanscan.hooks.plain_tap import PlainTap
from nanscan.hooks.plain_values import INERT, STATE, InsideHook, version_of
from nanscan.record import Flag, LinkCode, Phase
from nanscan.sites import NO_SITE

__all__ = ["INERT", "PlainSession", "clear_thread_state", "module_depth", "set_inert"]

_numbers = itertools.count(1)
INPUT = 1  # a module's INPUT site, relative to its OUTPUT site


def set_inert(inert: bool) -> None:
    """Make every plain hook of this process return at once (forked children, interpreter exit)."""
    INERT.on = inert


def clear_thread_state() -> None:
    """Forget what the calling thread's hooks remember."""
    STATE.stack.clear()
    STATE.values.clear()


def module_depth() -> int:
    """Watched module calls now running on the calling thread."""
    return len(STATE.stack)


@dataclass(slots=True)
class _Watched:
    """A parameter or buffer that is scanned as a whole. Weak: a scanner never keeps a model alive."""

    tensor: weakref.ref[torch.Tensor]
    site: int  # PARAM (its gradient is site + 1) or BUFFER
    parameter: bool
    # The gradient last scanned, to skip a second look at an unchanged one.
    grad: weakref.ref[torch.Tensor] | None = None
    grad_version: int = 0


class PlainSession(Writer):
    """One scanner's write side; implements nanscan.hooks.core.CoreSession.

    Args:
        capacity: records the ring holds, rounded up to a power of two.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.number = next(_numbers)  # not its id(): a later session may get the same one
        self.active = True  # False on steps that `every` or `schedule` leaves out
        self.closed = False
        self.in_optimizer = self.in_scale = False  # the op level asks for these, and is not here
        self.has_model = False
        self.batch = 0  # root forward calls so far
        self.backward_end: Callable[[], None] | None = None
        self._n_bad_drained = 0
        self._next_call = 0
        self._traced: dict[int, tuple[int, int]] = {}  # site -> (batch, call)
        self._callback_for = -1  # graph task that already has our end-of-backward callback
        self._watched: list[_Watched] = []
        self._site_of: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    @property
    def capacity(self) -> int:
        return self.ring.capacity

    def tap(self, site: int, root: bool = False, eager_inputs: bool = False, extension: str = "") -> PlainTap:
        """The hooks of the module, or of the extension, whose OUTPUT site is `site`."""
        return PlainTap(self, site, root, eager_inputs, bool(extension))

    def tensor_at(self, address: int) -> torch.Tensor | None:
        """The value that this thread has seen lately and whose memory the address points into."""
        return STATE.values.containing(address, self)

    def watching(self) -> bool:
        return self.active and not self.closed

    def new_call(self) -> int:
        """A fresh id for a call or a value."""
        with self.lock:
            self._next_call += 1
            return self._next_call

    def new_batch(self) -> int:
        """Number of the root forward that begins, from 0."""
        with self.lock:
            self.batch += 1
            return self.batch - 1

    def has_news(self) -> bool:
        """Were bad records written since the last drain?"""
        return self.n_bad != self._n_bad_drained

    def claim_backward(self, task: int) -> bool:
        """True for the first hook that asks during this graph task."""
        with self.lock:
            claimed, self._callback_for = self._callback_for != task, task
        return claimed

    def watch(self, tensor: torch.Tensor, site: int, parameter: bool) -> None:
        """Scan this parameter or buffer as a whole from now on."""
        with self.lock:
            self._watched.append(_Watched(weakref.ref(tensor), site, parameter))
            self._site_of[id(tensor)] = (weakref.ref(tensor), site)

    def clear_watched(self) -> None:
        with self.lock:
            self._watched.clear()
            self._site_of.clear()

    def watched_site(self, tensor: torch.Tensor) -> int:
        """Site of a watched tensor, NO_SITE if it is none."""
        with self.lock:
            ref, site = self._site_of.get(id(tensor), (None, NO_SITE))
        return site if ref is not None and ref() is tensor else NO_SITE

    def scan_grads(self, phase: int) -> None:
        """One pass over all gradients. One that was scanned before and changed since gets `phase`, a fresh one
        BACKWARD; an unchanged one is not scanned again."""
        if not self.watching():
            return
        with self.lock:
            for watched in self._watched:
                parameter = watched.tensor() if watched.parameter else None
                grad = parameter.grad if parameter is not None else None
                if grad is None:
                    continue
                version = version_of(grad)
                seen = watched.grad is not None and watched.grad() is grad
                if seen and watched.grad_version == version:
                    continue
                watched.grad, watched.grad_version = weakref.ref(grad), version
                self.record(grad, site=watched.site + 1, phase=phase if seen else Phase.BACKWARD)

    def scan_values(self, phase: int) -> None:
        """One pass over all parameters and buffers."""
        if not self.watching():
            return
        with self.lock:
            for watched in self._watched:
                tensor = watched.tensor()
                if tensor is not None:
                    self.record(tensor, site=watched.site, phase=phase)

    def scan_at(self, tensor: torch.Tensor, site: int, phase: int) -> bool:
        """Scan one tensor, outside the module hooks."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}")
        if INERT.on or not self.watching():
            return False
        with InsideHook():
            frame = STATE.top(self)
            return self.record(tensor, site=site, phase=phase, call=frame.call if frame is not None else 0) is not None

    def _traced_call_id(self, site: int) -> int:
        """One id per site and batch: a child has to name its parent's call before the parent has ended."""
        with self.lock:
            batch, call = self._traced.get(site, (0, 0))
            if call == 0 or batch != self.batch:
                call = self.new_call()
                self._traced[site] = (self.batch, call)
            return call

    def set_traced_call_id(self, site: int, call: int) -> None:
        """The root's call: a compiled model's inner modules report from inside the graph and name it."""
        with self.lock:
            self._traced[site] = (self.batch, call)

    def traced_begin(self, site: int, inputs: list[torch.Tensor]) -> None:
        """The root's forward begins inside a graph."""
        if INERT.on or self.current_site() == site:  # the hooks of the compiled model's own call have seen it begin
            return
        batch = self.new_batch()
        if not self.watching():
            return
        with InsideHook():
            call = self.new_call()
            self.set_traced_call_id(site, call)
            self.append_marker(site=site, call=call, flags=Flag.ENTER, phase=Phase.FORWARD, n=batch)
            for i, tensor in enumerate(inputs):
                self.record(tensor, site=site + INPUT, call=call, flags=Flag.INPUT, output_index=i, phase=Phase.DATA)

    def set_op_level(self, on: bool) -> None:
        """Ops are observed by the compiled core only."""
        if on:
            raise ValueError("plain PyTorch cannot observe ops")

    def end_step(self, next: int) -> None:
        """A step is over; the next one has this number."""
        self.step = next

    def traced_parameter(self, tensor: torch.Tensor, site: int, module_site: int) -> None:
        """A parameter of the module whose traced call was bad: recorded if it is bad itself."""
        try:
            record = scan_record(tensor)
        except UnscannableTensor:
            return
        if int(record["flags"][0]) & Flag.BAD:
            call = self._traced_call_id(module_site)
            self.record(tensor, site=site, call=call, flags=Flag.PARAM, phase=Phase.FORWARD)

    def abandon(self) -> None:
        """In a forked child: off, without a lock."""
        self.closed = True

    def traced_call(
        self, site: int, parent_site: int, root: bool, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> bool:
        """A module's forward ended inside a graph. True when an output is bad."""
        if INERT.on or not self.watching() or (root and self.current_site() == site):
            return False
        with InsideHook():
            call, bad = self._traced_call_id(site), False
            where: dict[str, Any] = {"call": call, "phase": Phase.FORWARD}
            for i, tensor in enumerate(outputs):
                record = self.record(tensor, site=site, flags=Flag.TOP if root else 0, output_index=i, **where)
                bad |= record is not None and bool(int(record["flags"][0]) & Flag.BAD)
            if not bad:
                return False
            # The root's inputs were seen when its forward began.
            flags = Flag.INPUT | (Flag.KNOWN if root else 0)
            for i, tensor in enumerate(inputs):
                self.record(tensor, site=site + INPUT, flags=flags, output_index=i, **where)
            parent_call = self._traced_call_id(parent_site) if parent_site >= 0 else 0
            self.append_marker(
                site=parent_site & NO_SITE, flags=Flag.LINK, n=LinkCode.PARENT, n_nan=parent_call, **where
            )
        return True

    # Here every scan is done when it returns: plain PyTorch waits for a device.
    device_error = ""
    pending = 0

    @property
    def position(self) -> int:
        return self.ring.appended

    @property
    def drained(self) -> int:
        return self.ring.appended - self.ring.size

    def take_unopened(self) -> int:
        return 0

    def open_device(self, index: int) -> bool:
        return False

    def poll_device(self) -> None:
        pass

    def flush_device(self) -> None:
        pass

    def drain(self) -> bytes:
        """All records, in sequence order, 128 bytes each; they leave the ring."""
        self._n_bad_drained = self.n_bad
        return self.ring.drain()

    def counters(self) -> dict[str, Any]:
        """What was done so far."""
        return {
            "records": self.ring.appended,
            "dropped": self.ring.dropped,
            "scans": self.n_scans,
            "bad": self.n_bad,
            "batches": self.batch,
            "unscanned": dict(self.unscanned),
        }

    def current_site(self) -> int:
        """OUTPUT site of the innermost watched module of the calling thread, NO_SITE outside."""
        frame = STATE.top(self)
        return frame.site if frame is not None else NO_SITE

    def reset_stack(self) -> None:
        """Drop the calling thread's frames of this session: at a step boundary none of its modules can be running,
        unless a forward was left by an exception that hooks are not told of (KeyboardInterrupt)."""
        STATE.stack[:] = [frame for frame in STATE.stack if frame.session is not self]

    def set_backward_end(self, callback: Callable[[], None] | None) -> None:
        """Call this at the end of a backward in which something bad was recorded."""
        self.backward_end = callback

    def close(self) -> None:
        """Watch nothing any more."""
        self.closed = True
        self.backward_end = None
        self.clear_watched()
        self.reset_stack()
        STATE.values.forget(self)
