"""The last value that was still good before an origin in a forward: the other side of the boundary."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import numpy as np

from nanscan.origin.births import Birth
from nanscan.origin.facts import StepFacts
from nanscan.record import Flag, Phase
from nanscan.sites import SiteKind, SiteTable

MAX_HELD = 1 << 16  # records of a step that never ends; the latest are those that are asked for
_NO_OUTPUT = int(
    Flag.BAD | Flag.INPUT | Flag.PARAM | Flag.LINK | Flag.ENTER | Flag.RECOMPUTE | Flag.CHANGED | Flag.CALL | Flag.OP
)


class Neighbours:
    """Keeps the records of a step in which something is bad, and looks into them when an origin is told."""

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites
        self._pieces: deque[np.ndarray] = deque()
        self._n_held = 0

    def add(self, records: np.ndarray) -> None:
        """Records in seq order, healthy ones too. They are not copied."""
        self._pieces.append(records)
        self._n_held += len(records)
        while self._n_held > MAX_HELD and len(self._pieces) > 1:
            self._n_held -= len(self._pieces.popleft())

    def forget(self) -> None:
        """The step is over."""
        if self._pieces:
            self._pieces.clear()
            self._n_held = 0

    def before(self, facts: StepFacts, birth: Birth) -> str | None:
        """``blocks.2 (Block) before it was finite, max|x| 31.2``: the last module that returned a finite value in the
        same forward before the birth, or check that saw one. None for births that are no module's doing."""
        start = birth.start
        root = facts.enter_before(birth.seq)
        if birth.phase != "forward" or birth.role != "origin" or start is None or start.recompute or root is None:
            return None
        # What a module read was bad before that module began: nothing that ran inside it came before.
        began = birth.fact.call if birth.output_index is None else None
        found = self._last(root[0], birth.seq, began, facts.calls)
        if found is None:
            return None
        site, absmax = self._sites[found[0]], found[1]
        kind = f" ({site.module_type})" if site.kind is SiteKind.OUTPUT and site.module and site.op is None else ""
        return f"{site.label}{kind} before it was finite, max|x| {absmax:.3g}"

    def _last(self, begin: int, end: int, began: int | None, bad_calls: Container[int]) -> tuple[int, float] | None:
        """(site, max|x| over all its tensors) of the last good call between two seqs."""
        found: tuple[int, int] | None = None  # (call, site): a check has the call it is in
        absmax = 0.0
        for piece in reversed(self._pieces):
            forward = (piece["phase"] == int(Phase.FORWARD)) & ((piece["flags"] & _NO_OUTPUT) == 0)
            inside = (piece["seq"] > begin) & (piece["seq"] < end) & (piece["n"] > 0)
            for rec in piece[forward & inside & (piece["site"] < len(self._sites))][::-1]:
                key = call, site = int(rec["call"]), int(rec["site"])
                if found is not None and key != found:
                    return found[1], absmax
                kind = self._sites[site].kind
                good = kind is SiteKind.CHECK or (kind is SiteKind.OUTPUT and call not in bad_calls)
                if good and (began is None or call < began):
                    found, absmax = key, max(absmax, abs(float(rec["min"])), abs(float(rec["max"])))
        return None if found is None else (found[1], absmax)
