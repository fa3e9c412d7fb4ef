"""Which gradients, parameters and buffers one step has had bad, and what happened to gradients before the update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanscan.record import Flag, Phase
from nanscan.sites import SiteKind, SiteTable

# Records that are no look at a whole gradient, parameter or buffer.
_OTHER = int(Flag.INPUT | Flag.PARAM | Flag.LINK | Flag.ENTER | Flag.CALL | Flag.OP)


@dataclass(slots=True)
class _Held:
    """What a gradient held at one look."""

    n: int
    n_nan: int
    n_inf: int
    n_zero: int


class StepTally:
    """Sets of sites, so bounded by their number however long the step.

    A gradient that is looked at again at the optimizer's step and was changed since backward has phase OPTIMIZER.
    What happened between the two is judged for the step's first update: a later one follows bad parameters.
    """

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites
        self.step = 0  # of the records
        self.gradients: set[int] = set()  # sites of bad ones
        self.seen: set[int] = set()  # of all gradients
        self.parameters: set[int] = set()
        self.buffers: set[int] = set()
        self._left: dict[int, _Held] = {}  # bad ones, as backward had left them
        self._changed: dict[int, _Held] = {}  # bad ones, when they were changed after it
        self._zeroed: set[int] = set()  # changed to nothing but zeros
        self._kept = False  # some gradient was changed and is good, and not all zeros
        self._updated = False  # the step's first update is over

    def take(self, records: np.ndarray) -> None:
        """Records of the step, healthy ones too, in seq order; any number of pieces."""
        if len(records):
            self.step = int(records["step"][-1])
        late = (records["phase"] >= int(Phase.BACKWARD)) & ((records["flags"] & _OTHER) == 0)
        for rec in records[late & (records["site"] < len(self._sites))]:
            site, phase = int(rec["site"]), int(rec["phase"])
            kind = self._sites[site].kind
            if kind is SiteKind.PARAM_GRAD:
                self._gradient(site, phase, rec)
            elif phase == Phase.OPTIMIZER and rec["flags"] & int(Flag.BAD):
                if kind is SiteKind.PARAM:
                    self.parameters.add(site)
                elif kind is SiteKind.BUFFER and (rec["n_nan"] or rec["n_posinf"]):  # -Inf alone may be a mask
                    self.buffers.add(site)

    def _gradient(self, site: int, phase: int, rec: np.void) -> None:
        self.seen.add(site)
        bad = bool(rec["flags"] & int(Flag.BAD))
        if bad:
            self.gradients.add(site)
        if self._updated:
            return
        held = _Held(int(rec["n"]), int(rec["n_nan"]), int(rec["n_posinf"]) + int(rec["n_neginf"]), int(rec["n_zero"]))
        if phase != Phase.OPTIMIZER:
            if bad and not self._changed:
                self._left[site] = held
        elif bad:
            self._changed[site] = held
        elif held.n_zero == held.n:
            self._zeroed.add(site)
        else:
            self._kept = True

    def update_over(self) -> None:
        """An optimizer has stepped."""
        self._updated = True

    @property
    def spread(self) -> tuple[int, int]:
        """(bad gradients that backward left, bad ones after clipping) where a NaN norm has spread it; else (0, 0).

        A norm that is NaN makes every element of every gradient NaN, and nothing else people do in between does.
        """
        fresh = [held for site, held in self._changed.items() if site not in self._left]
        if not self._left or not fresh or any(held.n_nan != held.n for held in fresh):
            return 0, 0
        return len(self._left), len(self._left.keys() | self._changed.keys())

    @property
    def zeroed(self) -> int:
        """How many gradients became all zeros because the norm was Inf; 0 if that did not happen.

        max_norm / Inf is 0: what was finite is 0 afterwards, and what was Inf is NaN (0 * Inf), element by element.
        """
        if self._kept or not self._left or self._left.keys() != self._changed.keys():
            return 0
        for site, held in self._left.items():
            now = self._changed[site]
            if held.n_nan or now.n_inf or now.n_nan != held.n_inf or now.n_nan + now.n_zero != now.n:
                return 0
        return len(self._zeroed)
