"""From the health detectors' findings to events, and from the history to a report's "before" line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanscan.events.event import Event
from nanscan.health import GrowthFinding, GrowthWatch
from nanscan.sites import Site, SiteKind, SiteTable


class HealthWatch:
    """Feeds the growth detector and words what it finds.

    Args:
        sites: the scanner's site table.
        rank: put into events.
        growth: settings of GrowthWatch (threshold, warmup, ...); None: its defaults.
    """

    def __init__(self, sites: SiteTable, rank: int, growth: Mapping[str, Any] | None = None) -> None:
        self._sites = sites
        self._rank = rank
        if growth is not None and not isinstance(growth, Mapping):
            raise TypeError(
                f"growth={growth!r} is a {type(growth).__name__}; give a mapping such as {{'threshold': 10}}"
            )
        try:
            self._growth = GrowthWatch(sites, **(growth or {}))
        except TypeError as err:
            raise TypeError(
                f"growth={dict(growth or {})!r}: {err}; see nanscan.health.GrowthWatch for the settings"
            ) from None
        self._seq = 0

    def add(self, records: NDArray[np.void]) -> None:
        """Take records of the running step."""
        self._growth.add(records)
        if len(records):
            self._seq = int(records["seq"][-1])

    def seen_good(self) -> frozenset[int]:
        """Sites whose value in the running step was finite and not all zero."""
        return frozenset(self._growth.history.now().sites.tolist())

    def updated_before(self, step: int) -> int | None:
        """The last step before this one in which an optimizer's results were looked at, and were good."""
        found = -1
        for i in range(len(self._sites)):
            if self._sites[i].kind is SiteKind.PARAM:
                newest = self._growth.history.last(i, 1, before=step)
                found = max(found, newest[0][0]) if newest else found
                if found == step - 1:
                    break
        return None if found < 0 else found

    def end_step(self, step: int) -> list[Event]:
        """The step is over: events for what left its own history."""
        return [self._event(finding) for finding in self._growth.end_step(step)]

    def _event(self, finding: GrowthFinding) -> Event:
        site = self._sites[finding.site]
        return Event(
            severity="warning",
            kind="explosion",
            phase=finding.phase,
            step=finding.step,
            module=site.module,
            module_type=site.module_type,
            tensor=site.tensor,
            tensor_kind=None if site.tensor is None else "gradient",
            rank=self._rank,
            evidence=finding.evidence,
            remedy=finding.remedy,
            seq=self._seq,
            time=time.time(),
        )

    def absmax_before(self, event: Event, k: int) -> list[float] | None:
        """max|x| of the last k steps before the event at its site, oldest first; None where there is no history."""
        site = next((i for i in range(len(self._sites)) if _same(self._sites[i], event)), None)
        if site is None:
            return None
        return [absmax for _, absmax in self._growth.history.last(site, k, before=event.step)] or None


_TENSOR_SITES = {
    "parameter": SiteKind.PARAM,
    "gradient": SiteKind.PARAM_GRAD,
    "buffer": SiteKind.BUFFER,
    "check": SiteKind.CHECK,
}


def _same(site: Site, event: Event) -> bool:
    """Whether the site's history is that of the value the event shows. What a module read has none."""
    if event.tensor is not None:
        kind = _TENSOR_SITES.get(event.tensor_kind or "")
        same_module = event.tensor_kind != "check" or site.module == event.module
        return site.kind is kind and site.tensor == event.tensor and same_module
    if event.phase == "backward":
        return site.kind is SiteKind.GRAD_OUTPUT and (site.module, site.op) == (event.module, event.op)
    same = (site.module, site.op) == (event.module, event.op)
    return site.kind is SiteKind.OUTPUT and same and event.output_index is not None
