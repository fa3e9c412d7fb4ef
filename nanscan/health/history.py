"""The recent past of every site: one number for its size per step, and the largest values it has settled at.

A training step hands over all its records; they become one value per site (the largest of the step), appended to a ring
of the last `window` values. Everything is an array over site ids: no Python loop per record or site.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanscan.record import DType, Flag
from nanscan.sites import NO_SITE

# Records that say nothing about a site's usual size: facts about calls, values read rather than made, and values
# already broken (their moments run over what is left; the event for them is another one's job).
_IGNORED = int(Flag.BAD | Flag.INPUT | Flag.PARAM | Flag.LINK | Flag.ENTER | Flag.CHANGED | Flag.CALL)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Now(NamedTuple):
    """The step that is running: sites seen so far, in ascending order, and the log2 of their RMS."""

    sites: Ints
    log_rms: Floats


class SiteHistory:
    """The last values of every site, in memory bounded by the number of sites.

    A site's value in a step is the RMS, norm / sqrt(n), kept as log2: growth is then a difference, and tensors of
    different sizes compare. A step in which the site was all zeros, or was not seen, leaves no value (a rare
    embedding's gradient is mostly zero; its history is that of the steps in which it was used).

    Args:
        window: how many values are kept per site.
        recent: how many of the newest values (the one being judged included) `settled` leaves out.
    """

    def __init__(self, window: int = 32, recent: int = 8) -> None:
        if window < 2:
            raise ValueError(f"SiteHistory(window={window!r}): keep at least 2 values per site")
        if not 1 <= recent <= window:
            raise ValueError(f"SiteHistory(recent={recent!r}): must be between 1 and window={window}")
        self.window = window
        self.recent = recent
        self.counts: Ints = np.zeros(0, np.int64)  # values ever seen, per site
        # Largest value ever, but for the newest ones: a slow explosion must not raise its own yardstick.
        self.settled: Floats = np.zeros(0)
        self._log: Floats = np.zeros((0, window))  # [site, slot] log2 RMS, -inf where nothing was kept yet
        self._absmax: Floats = np.zeros((0, window))  # [site, slot]
        self._steps: Ints = np.zeros((0, window), np.int64)  # [site, slot]
        self._now_log: Floats = np.zeros(0)  # [site] of the running step, -inf: not seen
        self._now_absmax: Floats = np.zeros(0)

    def __len__(self) -> int:
        """One more than the highest site id that may have a history."""
        return len(self.counts)

    def observe(self, step: int, records: NDArray[np.void]) -> None:
        """Take all records of one step. The same as `add` and `end`, for those who have them in one piece."""
        self.add(records)
        self.end(step)

    def add(self, records: NDArray[np.void]) -> None:
        """Take some records of the running step, in any order."""
        sites = records["site"].astype(np.int64)
        n = records["n"].astype(np.float64)
        mean = records["mean"]
        keep = ((records["flags"] & _IGNORED) == 0) & (n > 0) & (sites != NO_SITE)
        parts = np.where(records["dtype"] >= int(DType.C64), 2.0 * n, n)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # hypot and not sqrt(m2 / n + mean^2): the square of a large mean would overflow
            log = np.log2(np.hypot(np.sqrt(records["m2"] / parts), mean))
        keep &= np.isfinite(log)  # also drops all zeros
        if not keep.any():
            return
        sites = sites[keep]
        self._reserve(int(sites.max()) + 1)
        absmax = np.maximum(np.abs(records["min"]), np.abs(records["max"]))
        np.maximum.at(self._now_log, sites, log[keep])
        np.maximum.at(self._now_absmax, sites, absmax[keep])

    def now(self) -> Now:
        """What was added since the last `end`."""
        sites = np.flatnonzero(self._now_log > -np.inf)
        return Now(sites, self._now_log[sites])

    def end(self, step: int, now: Now | None = None) -> None:
        """Close the running step: its values become the newest of the history.

        Args:
            now: what `now()` says, if it was asked since the last `add`.
        """
        sites, log = self.now() if now is None else now
        counts = self.counts[sites]
        slots = counts % self.window
        self._log[sites, slots] = log
        self._absmax[sites, slots] = self._now_absmax[sites]
        self._steps[sites, slots] = step
        counts += 1
        self.counts[sites] = counts
        old = counts >= self.recent
        if old.any():
            sites, counts = sites[old], counts[old]
            aged = self._log[sites, (counts - self.recent) % self.window]
            self.settled[sites] = np.maximum(self.settled[sites], aged)
        self._now_log.fill(-np.inf)
        self._now_absmax.fill(0.0)

    def values(self, sites: Ints) -> Floats:
        """``[len(sites), window]`` log2 RMS in no particular order, -inf where a slot is empty."""
        return self._log[sites]

    def newest(self, sites: Ints, k: int) -> Floats:
        """``[len(sites), k]`` log2 RMS of the last k values, oldest first. Each site must have that many."""
        return self._log[sites[:, None], self._slots(sites, k)]

    def newest_steps(self, site: int, k: int) -> Ints:
        """Steps of the site's last k values, oldest first."""
        return self._steps[site, self._slots(np.array([site]), k)[0]]

    def last(self, site: int, k: int, before: int | None = None) -> list[tuple[int, float]]:
        """(step, max|x|) of the site's last k values, oldest first; fewer if there are fewer.

        Args:
            before: only steps before this one (an event's step, say).
        """
        if not 0 <= site < len(self) or k <= 0:
            return []
        slots = self._slots(np.array([site]), min(int(self.counts[site]), self.window))[0]
        past = zip(self._steps[site, slots].tolist(), self._absmax[site, slots].tolist(), strict=True)
        return [(step, absmax) for step, absmax in past if before is None or step < before][-k:]

    def _slots(self, sites: Ints, k: int) -> Ints:
        """``[len(sites), k]`` slots of the last k values, oldest first."""
        slots: Ints = (self.counts[sites][:, None] + np.arange(-k, 0)) % self.window
        return slots

    def _reserve(self, n: int) -> None:
        """Room for site ids below n. Doubling keeps the total cost of growing linear."""
        if n <= len(self):
            return
        more = max(n, 2 * len(self), 64) - len(self)
        self.counts = np.concatenate([self.counts, np.zeros(more, np.int64)])
        self.settled = np.concatenate([self.settled, np.full(more, -np.inf)])
        self._log = np.concatenate([self._log, np.full((more, self.window), -np.inf)])
        self._absmax = np.concatenate([self._absmax, np.zeros((more, self.window))])
        self._steps = np.concatenate([self._steps, np.zeros((more, self.window), np.int64)])
        self._now_log = np.concatenate([self._now_log, np.full(more, -np.inf)])
        self._now_absmax = np.concatenate([self._now_absmax, np.zeros(more)])
