"""One module's hooks for a plain session. Twin of module_hook.cpp and call_values.cpp: the same records in order."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nanscan.hooks.core import ATTEND_BAD, ATTEND_FULL
from nanscan.hooks.plain_grad import tap_gradient, tap_leaf
from nanscan.hooks.plain_values import (
    INERT,
    MAX_INPUTS,
    STATE,
    Frame,
    InsideHook,
    Party,
    SeenInput,
    SeenValue,
    bad_counts,
    device_of,
    dtype_of,
    in_backward,
    same_content,
    tensors,
    version_of,
    wants_gradient,
)
from nanscan.record import Flag, LinkCode, Phase
from nanscan.sites import NO_SITE

if TYPE_CHECKING:
    from nanscan.hooks.plain import PlainSession

INPUT = 1  # a module's INPUT site, relative to its OUTPUT site


class PlainTap:
    """Called once before and once after a module's forward, or an extension's call."""

    __slots__ = ("eager_inputs", "extension", "root", "session", "site")

    def __init__(self, session: PlainSession, site: int, root: bool, eager_inputs: bool, extension: bool) -> None:
        self.session = session
        self.site = site
        self.root = root
        self.eager_inputs = eager_inputs
        self.extension = extension  # no module: it may write whatever it is given, and raises no version

    def enter(self, args: Any, kwargs: Any, /) -> None:
        """Before the forward."""
        session = self.session
        if INERT.on:
            return
        if not session.watching():  # batches are numbered whether or not this step is scanned
            if self.root and not session.closed and not in_backward():
                session.new_batch()
            return
        with InsideHook() as inside:
            if inside.reentered:
                return
            parent = STATE.top(session)
            parent_call, parent_site = (parent.call, parent.site) if parent is not None else (0, NO_SITE)
            frame = Frame(session, self.site, session.new_call(), parent_call, parent_site)
            STATE.stack.append(frame)
            if self.root and parent_call == 0 and not in_backward():
                session.append_marker(
                    site=self.site, call=frame.call, flags=Flag.ENTER, phase=Phase.FORWARD, n=session.new_batch()
                )
                session.set_traced_call_id(self.site, frame.call)
            ordinal = 0
            for value in (args, kwargs):
                for tensor in tensors(value):
                    self._see_input(frame, tensor, ordinal)
                    ordinal += 1

    def leave(self, module: Any, args: Any, kwargs: Any, output: Any, /) -> int:
        """After it; returns ATTEND_* bits. `output` is None when the forward raised."""
        attend = 0
        if INERT.on:
            return attend
        with InsideHook() as inside:
            if inside.reentered:
                return attend
            session, stack = self.session, STATE.stack
            # Frames above ours: calls that an exception ended. Ours may be missing when scanning began mid-call.
            i = len(stack) - 1
            while i >= 0 and not (stack[i].session is session and stack[i].site == self.site):
                i -= 1
            if i < 0:
                return attend
            frame = stack[i]
            # Another session's frames above ours stay: two sessions on one module run their hooks in the same order
            # before and after it, so their calls overlap and do not nest.
            stack[i:] = [other for other in stack[i + 1 :] if other.session is not session]
            parent = STATE.top(session)
            if session.watching() and output is not None:
                recompute = in_backward()
                marks = (Flag.TOP if parent is None and not recompute else 0) | (Flag.RECOMPUTE if recompute else 0)
                bad = False
                results = list(tensors(output))
                if self.extension:
                    self._add_written(frame, args, results)
                for ordinal, tensor in enumerate(results):
                    bad |= self._see_output(frame, tensor, ordinal, marks)
                if bad:
                    self._explain(frame, module, args, kwargs)
                if parent is None and not recompute and session.has_news():
                    attend |= ATTEND_BAD
            if session.ring.size * 2 > session.ring.capacity:
                attend |= ATTEND_FULL
        return attend

    def _see_input(self, frame: Frame, tensor: torch.Tensor, ordinal: int) -> None:
        """The value is read by this module: take note of its state, and watch its gradient."""
        session, values = self.session, STATE.values
        inference = tensor.is_inference()  # no version counter: nothing tells two values apart
        seen = None if inference else values.find(tensor, session)
        known = seen is not None and seen.scanned
        record = None
        if self.root or (self.eager_inputs and not known):
            site = self.site + INPUT
            record = session.record(
                tensor,
                site=site,
                call=frame.call,
                flags=Flag.INPUT,
                phase=Phase.DATA if self.root else Phase.FORWARD,
                output_index=ordinal,
            )
            if record is not None and not inference:
                if seen is None or not seen.scanned:
                    seen = self._put(tensor, seen)
                    seen.remember(record)
                elif seen.site == site:
                    seen.remember(record)
                else:  # it keeps its maker; a buffer that is refilled step after step has other numbers by now
                    seen.bad_counts = bad_counts(record)
        if self.extension or len(frame.inputs) < MAX_INPUTS:
            note = SeenInput(weakref.ref(tensor), version_of(tensor))
            if seen is not None and seen.scanned:
                # Seen first as this very call's own input says nothing about who made it.
                note.known = seen.call != frame.call or self.root
                note.counted = True
                note.site, note.call, note.bad_counts = seen.site, seen.call, seen.bad_counts
            elif record is not None:
                note.known, note.counted, note.bad_counts = self.root, True, bad_counts(record)
                note.site, note.call = self.site + INPUT, frame.call
            frame.inputs.append(note)
            if self.extension:
                self._take_state(note, tensor)
        if not wants_gradient(tensor):
            return
        if seen is None:
            seen = values.put(tensor, session)
        if tensor.is_leaf:
            seen.tap = tap_leaf(tensor, session, frame)
        elif seen.tap is None:
            seen.tap = tap_gradient(tensor, session)
        if seen.tap is not None:
            seen.tap.add_reader(_party(frame, self.site + INPUT))

    def _take_state(self, note: SeenInput, tensor: torch.Tensor) -> None:
        """What an extension is given is read whatever is known of it: such code writes without raising a version."""
        note.before = self.session.look(tensor)
        if note.before is not None:
            counts = bad_counts(note.before)
            note.changed = note.known and note.counted and not any(note.bad_counts) and any(counts)
            note.counted, note.bad_counts = True, counts

    def _add_written(self, frame: Frame, given: Any, results: list[torch.Tensor]) -> None:
        """Which of the tensors it was given an extension has written: they are its results, after those it returned."""
        for note, tensor in zip(frame.inputs, tensors(given), strict=False):
            now = None if note.before is None else self.session.look(tensor)
            if now is None or same_content(note.before, now):
                continue
            note.written = True
            if all(result is not tensor for result in results):
                results.append(tensor)

    def _see_output(self, frame: Frame, tensor: torch.Tensor, ordinal: int, marks: int) -> bool:
        """One output tensor. True when it is bad."""
        session = self.session
        inference = tensor.is_inference()  # no version counter: nothing tells two values apart
        seen = None if inference else STATE.values.find(tensor, session)
        bad = False
        # An extension made all it returns and did not just hand through, however long the tensor has been known.
        note = _input_of(frame, tensor) if self.extension else None
        made_here = self.extension and (note is None or note.written)
        # A clean value that a child (or the caller) handed over was scanned once, and that is enough.
        if made_here or seen is None or not seen.scanned or seen.bad:
            record = session.record(
                tensor, site=self.site, call=frame.call, flags=marks, phase=Phase.FORWARD, output_index=ordinal
            )
            if record is not None:
                bad = any(bad_counts(record))
                # An alias keeps its first maker: that is who gets named.
                alias = not made_here and seen is not None and seen.scanned
                if not alias and not inference:
                    seen = self._put(tensor, seen)
                    seen.remember(record)
            elif seen is None:
                return False
        if seen is None or not wants_gradient(tensor) or tensor.is_leaf:
            return bad  # a returned leaf was not made here
        if seen.tap is None:
            seen.tap = tap_gradient(tensor, session)
        if seen.tap is not None:
            seen.tap.add_maker(_party(frame, self.site))
        return bad

    def _put(self, tensor: torch.Tensor, seen: SeenValue | None) -> SeenValue:
        """A fresh entry that keeps the gradient tap of the old one."""
        tap = seen.tap if seen is not None else None
        fresh = STATE.values.put(tensor, self.session)
        fresh.tap = tap
        return fresh

    def _explain(self, frame: Frame, module: Any, args: Any, kwargs: Any) -> None:
        """The call went bad: say in what state its inputs and own tensors are. Not looked at on the healthy path."""
        ordinal = 0
        for value in (args, kwargs):
            for tensor in tensors(value):
                self._explain_input(frame, tensor, ordinal)
                ordinal += 1
        for attribute in ("_parameters", "_buffers"):
            for tensor in tensors(getattr(module, attribute, None)):
                self._explain_own(frame, tensor)
        self._link(frame.call, LinkCode.PARENT, frame.parent_site, frame.parent_call, 0)

    def _explain_input(self, frame: Frame, tensor: torch.Tensor, ordinal: int) -> None:
        session = self.session
        before = _input_of(frame, tensor)
        flags = Flag.INPUT | (Flag.KNOWN if before is not None and before.known else 0)
        flags |= Flag.CHANGED if before is not None and before.changed else 0
        was_bad = before is not None and any(before.bad_counts)
        fields: dict[str, Any] = {
            "site": self.site + INPUT, "call": frame.call, "phase": Phase.FORWARD, "output_index": ordinal,
        }  # fmt: skip
        if before is not None and before.written:
            session.append(before.before, flags=flags, shape=session.shape_id(tensor) if was_bad else 0, **fields)
        elif before is not None and (
            before.version != version_of(tensor) or (before.counted and tensor.is_inference())
        ):
            # The module wrote its input in place, so what it read is gone: the earlier counts are all that is left.
            # An inference tensor has no version to tell; it was counted by this very call if at all.
            if not before.counted:
                return
            nan, posinf, neginf = before.bad_counts
            flags |= Flag.BAD if was_bad else 0
            session.append_marker(
                **fields, flags=flags, dtype=dtype_of(tensor), device=device_of(tensor), n=tensor.numel(), n_nan=nan,
                n_posinf=posinf, n_neginf=neginf, first_bad=-1, min=math.inf, max=-math.inf,
            )  # fmt: skip
        else:
            record = session.look(tensor)
            if record is None:
                return
            bad = any(bad_counts(record))
            if bad and flags & Flag.KNOWN and not was_bad:
                flags |= Flag.CHANGED
            session.append(record, flags=flags, shape=session.shape_id(tensor) if bad else 0, **fields)
        if before is not None and before.site != NO_SITE:
            self._link(frame.call, LinkCode.PRODUCER_OF_INPUT, before.site, before.call, ordinal)

    def _explain_own(self, frame: Frame, tensor: torch.Tensor) -> None:
        """A parameter or buffer the module owns itself: a bad one explains a bad output."""
        session = self.session
        site = session.watched_site(tensor)
        record = session.look(tensor) if site != NO_SITE else None
        if record is None or not any(bad_counts(record)):
            return
        session.append(
            record, site=site, call=frame.call, flags=Flag.PARAM, phase=Phase.FORWARD, shape=session.shape_id(tensor)
        )

    def _link(self, call: int, code: LinkCode, site: int, other_call: int, ordinal: int) -> None:
        self.session.append_marker(
            site=site, call=call, flags=Flag.LINK, phase=Phase.FORWARD, n=code, n_nan=other_call, output_index=ordinal
        )


def _input_of(frame: Frame, tensor: torch.Tensor) -> SeenInput | None:
    return next((note for note in frame.inputs if note.ref() is tensor), None)


def _party(frame: Frame, site: int) -> Party:
    return Party(site, frame.call, frame.parent_call, frame.parent_site)
