"""Gradients as they reach a value, for a plain session: Python pre-hooks on autograd nodes. Twin of autograd_hook.cpp.

No identity node is inserted, and no reference to a gradient outlives the hook.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import _disable_current_modes

from nanscan.hooks.plain_values import INERT, Frame, GradTap, InsideHook, Party
from nanscan.record import Flag, LinkCode, Phase

if TYPE_CHECKING:
    from nanscan.hooks.plain import PlainSession

GRAD_OUTPUT, GRAD_INPUT, INPUT = 2, 3, 1  # a module's sites, relative to its first

# Our hooks on AccumulateGrad nodes: id of the leaf -> (the leaf, hooks). Weak on both sides: a hook lives in its node.
_leaf_hooks: dict[int, tuple[weakref.ref[torch.Tensor], list[weakref.ref[_TapHook]]]] = {}
_leaf_lock = threading.Lock()


class _TapHook:
    """The pre-hook. Returns None, so that the engine goes on with the very same gradients."""

    __slots__ = ("__weakref__", "index", "tap")

    def __init__(self, tap: GradTap, index: int) -> None:
        self.tap = tap
        self.index = index

    def __call__(self, grads: tuple[torch.Tensor | None, ...]) -> None:
        session = self.tap.session
        if INERT.on or not session.watching():
            return
        with InsideHook() as inside:
            request_backward_end(session)
            grad = grads[self.index] if self.index < len(grads) else None
            if not inside.reentered and grad is not None:
                _observe(self.tap, grad)


def tap_gradient(tensor: torch.Tensor, session: PlainSession) -> GradTap | None:
    """Watch the gradient of a value made by an autograd node. None when there is nothing to hook."""
    node = tensor.grad_fn
    if node is None:
        return None
    tap = GradTap(session)
    node.register_prehook(_TapHook(tap, tensor.output_nr))
    return tap


def tap_leaf(tensor: torch.Tensor, session: PlainSession, frame: Frame) -> GradTap:
    """The same for a leaf (a parameter passed as an argument): the tap sits on its AccumulateGrad node.

    Args:
        frame: the running call; it keeps the node until its own forward has linked it into the graph.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        # For a leaf it asks a throw-away view for its next node, which is the leaf's AccumulateGrad.
        node = get_gradient_edge(tensor).node
    frame.nodes.append(node)
    with _leaf_lock:
        known, refs = _leaf_hooks.get(id(tensor), (None, []))
        if known is None or known() is not tensor:
            refs = []
        # The node can outlive the graph (DDP keeps them): reuse our hook there, or one would be added per step. A
        # pre-hook only: a post hook on this node makes gradients share memory.
        alive = [hook for hook in (ref() for ref in refs) if hook is not None]
        for hook in alive:
            if hook.tap.session is not session and not hook.tap.session.closed:
                continue
            if hook.tap.session is not session or hook.tap.step != session.step:
                hook.tap = GradTap(session)
            return hook.tap
        tap = GradTap(session)
        hook = _TapHook(tap, 0)
        node.register_prehook(hook)
        key = id(tensor)
        leaf = weakref.ref(tensor, lambda ref: _forget(key, ref))
        _leaf_hooks[key] = (leaf, [weakref.ref(h) for h in (*alive, hook)])
    return tap


def _forget(key: int, ref: weakref.ref[torch.Tensor]) -> None:
    # Without the lock: a callback may come at any line of the thread that holds it.
    found = _leaf_hooks.get(key)
    if found is not None and found[0] is ref:
        _leaf_hooks.pop(key, None)


def _observe(tap: GradTap, grad: torch.Tensor) -> None:
    session = tap.session
    if not tap.makers and not tap.readers:
        return
    site = tap.makers[0].site + GRAD_OUTPUT if tap.makers else tap.readers[0].site - INPUT + GRAD_INPUT
    record = session.record(grad, site=site, call=tap.value, phase=Phase.BACKWARD)
    if record is None or not int(record["flags"][0]) & Flag.BAD:
        return

    def link(party: Party, code: LinkCode) -> None:
        session.append_marker(
            site=party.site,
            call=tap.value,
            flags=Flag.LINK,
            phase=Phase.BACKWARD,
            n=code,
            n_nan=party.call,
            n_posinf=party.parent_call,
            n_neginf=party.parent_site,
        )

    for party in tuple(tap.makers):
        link(party, LinkCode.GRAD_PRODUCER)
    for party in tuple(tap.readers):
        link(party, LinkCode.GRAD_CONSUMER)


def request_backward_end(session: PlainSession) -> None:
    """Ask the engine to run `session`'s end-of-backward pass (parameter gradients) once for the running graph task."""
    task = torch._C._current_graph_task_id()
    if task < 0 or not session.claim_backward(task):
        return
    bad_before = session.n_bad

    def at_end() -> None:
        if INERT.on or not session.watching():
            return
        with InsideHook():
            session.scan_grads(Phase.BACKWARD)
        callback = session.backward_end
        # What it raises is what the user asked for (on_anomaly="raise"): the engine carries it out of backward().
        if callback is not None and session.n_bad != bad_before:
            callback()

    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(at_end)
