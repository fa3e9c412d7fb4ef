"""The explosion detector: gradients that leave their own history, a step or more before the first NaN.

Only finite values are judged. What is watched, and why:

- Gradients (of parameters, and reaching modules' outputs). In the planned explosion T7 (fast) they have doubled 8 steps
  before the first NaN, while outputs and parameters move by less than 10% until 3 steps before it.
- Outputs and parameters only as witnesses of a surge: the scale of the loss does not move them.
- Checks, inputs and buffers never: their scale is the user's business.

Two rules. Both speak only when at least `share` of the gradients seen in the step do the same, since an explosion lifts
nearly all of them, and both compare with the largest value a site ever settled at: warm restarts, late spikes, a hard
batch after convergence and loss bumps stay below what the start of training showed.

**Rise**: a steady climb out of a quiet past. Per site, x being the log2 of the RMS now:
(1) x exceeds the median of the window by `threshold` times its MAD (never taken below MAD_FLOOR) and by
    log2(min_ratio). Natural growth from small beginnings (zero-initialised heads and residual branches, LoRA, saddles)
    is steady, so its window is as wide as it is tall: an exponential climb stays at 2 MAD whatever its rate.
(2) x is not below the largest settled value (all but the last 7 steps).
(3) it rose in each of the last `rise` steps. Noise does that in one of 720 cases for 5 steps, and seldom in half of the
    sites at once: heavy-tailed batches return in the next step.
(4) those steps gained at least MIN_GAIN doublings without the largest of them: a loss scale that doubles, a larger
    batch, a new task are one jump, not a climb.

**Surge**: gradients `surge` times above everything settled (while a site is younger than `warmup`: above everything),
and the model went along: at the same step half of the parameters are more than twice above everything of theirs, or
half of the outputs more than four times, in two steps running. A heavy-tailed loss or a loss scale moves neither; a
freak batch moves the outputs once (inputs from Student's t with 1.5 degrees: every output and gradient, in one step of
600). It needs no warm-up, and finds programs that explode within their first steps.

Found with the defaults: T7 fast 8 steps before the first NaN (16 of 28 gradients), T7 slow 92 steps before. Of 179
healthy trainings of 300 to 2500 steps (61 kinds, most with 3 seeds) and 16 healthy cases, one raised an alarm: a real
loss spike (full-batch descent on T7's net, loss 0.3 to 1.6 and back). Largest share reached elsewhere: by the rise rule
0.39 (escape from a plateau) and 0.33, by the surge rule 0.25 (inputs 30 times larger from one step on).
Not found: divergence that never raises the gradients (saturated LSTM, Adam, clipped runs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanscan.health.finding import GrowthFinding, rise_evidence, surge_evidence
from nanscan.health.history import Floats, Ints, Now, SiteHistory
from nanscan.sites import SiteKind, SiteTable

MAD_FLOOR = 0.1  # doublings; a full-batch run repeats itself to 1e-3, and a wobble of 1% is no news
MIN_GAIN = 0.4  # doublings
# What counts as the model going along with a surge: (kind, its name, doublings, steps in a row).
WITNESSES = ((SiteKind.PARAM, "parameters", 1.0, 1), (SiteKind.OUTPUT, "module outputs", 2.0, 2))
_GRADIENTS = (SiteKind.GRAD_OUTPUT, SiteKind.GRAD_INPUT, SiteKind.PARAM_GRAD)
Bools = NDArray[np.bool_]


class _Past(NamedTuple):
    """Of some sites: how many values they had before, and the largest they settled at."""

    counts: Ints
    settled: Floats


@dataclass(slots=True)
class _Episode:
    """An alarm that is out: nothing more is said until it is over."""

    sites: Ints
    normal: Floats  # log2 RMS at and below which a site counts as back
    last_growth: int  # step


class GrowthWatch:
    """Judges each step's gradients against their own past; see the module's text for the rules and their reasons.

    At most one finding per step, naming the strongest site and how many grew with it, and one per episode: the next can
    come when half of the sites are back at what was normal, or after `window` steps without growth.

    Args:
        sites: the site table, for the kinds and names of sites.
        window: steps of history per site.
        threshold: how many MADs above the median a climb must reach; lower is more sensitive.
        warmup: values a site needs before the rise rule judges it (and before the surge rule forgives recent growth).
        min_ratio: a climb below this many times the median is never reported.
        share: the part of the gradients that must grow together.
        rise: how many steps in a row must rise.
        surge: how many times above everything before a surge must be.
    """

    def __init__(
        self,
        sites: SiteTable,
        *,
        window: int = 32,
        threshold: float = 7.0,
        warmup: int = 20,
        min_ratio: float = 2.0,
        share: float = 0.5,
        rise: int = 5,
        surge: float = 8.0,
    ) -> None:
        if not threshold > 0:
            raise ValueError(f"GrowthWatch(threshold={threshold!r}): must be positive; the default is 7 (MADs)")
        if not min_ratio > 1 or not surge > 1:
            raise ValueError(f"GrowthWatch(min_ratio={min_ratio!r}, surge={surge!r}): growth is a ratio above 1")
        if not 0 < share <= 1:
            raise ValueError(f"GrowthWatch(share={share!r}): must be above 0 and at most 1")
        if not 2 <= rise < warmup <= window:
            raise ValueError(
                f"GrowthWatch(rise={rise!r}, warmup={warmup!r}, window={window!r}): needs 2 <= rise < warmup <= window"
            )
        self.history = SiteHistory(window, recent=min(8, window))
        self._sites = sites
        self._threshold, self._warmup, self._share, self._n_rise = threshold, warmup, share, rise
        self._min_ratio, self._surge = math.log2(min_ratio), math.log2(surge)
        self._kinds: NDArray[np.int8] = np.zeros(0, np.int8)  # by site
        self._is_gradient: Bools = np.zeros(0, np.bool_)  # by site
        self._episode: _Episode | None = None
        self._surged = False  # gradients and outputs surged in the last step, and nobody else agreed yet

    def observe(self, step: int, records: NDArray[np.void]) -> list[GrowthFinding]:
        """Judge a step whose records are all in `records`; the same as `add` and `end_step`."""
        self.add(records)
        return self.end_step(step)

    def add(self, records: NDArray[np.void]) -> None:
        """Take some records of the running step."""
        self.history.add(records)

    def end_step(self, step: int) -> list[GrowthFinding]:
        """Judge the running step against the history, then make it part of the history."""
        now = self.history.now()
        finding = self._judge(step, now)
        self._follow(step, now, finding)
        out = [finding] if finding is not None and self._episode is None else []
        if out:
            grown = np.array(finding.sites) if finding is not None else np.zeros(0, np.int64)
            self._episode = _Episode(grown, self._medians(grown)[0] + self._min_ratio, step)
        self.history.end(step, now)
        return out

    def _judge(self, step: int, now: Now) -> GrowthFinding | None:
        if not len(now.sites):
            return None
        self._learn_kinds()
        gradient = self._is_gradient[now.sites]
        gradients = Now(now.sites[gradient], now.log_rms[gradient])
        past = _Past(self.history.counts[gradients.sites], self.history.settled[gradients.sites])
        return self._find_surge(step, now, gradients, past) or self._find_rise(step, gradients, past)

    def _find_rise(self, step: int, now: Now, past: _Past) -> GrowthFinding | None:
        judged = past.counts >= self._warmup
        n_judged = int(np.count_nonzero(judged))
        # Cheap first: few sites of a healthy step stand above all they have settled at.
        hot = judged & (now.log_rms >= past.settled)
        if not self._enough(int(np.count_nonzero(hot)), n_judged):
            return None
        sites, x = now.sites[hot], now.log_rms[hot]
        path = np.column_stack([self.history.newest(sites, self._n_rise), x])
        gains = np.diff(path, axis=1)
        rising = (gains > 0).all(axis=1) & (gains.sum(axis=1) - gains.max(axis=1) >= MIN_GAIN)
        if not self._enough(int(rising.sum()), n_judged):
            return None
        sites, x, path = sites[rising], x[rising], path[rising]
        median, mad = self._medians(sites)
        above = x - median
        grown = (above >= self._min_ratio) & (above >= self._threshold * np.maximum(mad, MAD_FLOOR))
        if not self._enough(int(grown.sum()), n_judged):
            return None
        order = np.flatnonzero(grown)[np.argsort(-above[grown], kind="stable")]
        best = order[0]
        site, value, usual = int(sites[best]), float(2.0 ** x[best]), float(2.0 ** median[best])
        n_window = min(int(self.history.counts[site]), self.history.window)
        return GrowthFinding(
            rule="rise", site=site, step=step, value=value, median=usual, spread=float(mad[best]), ratio=value / usual,
            since=self._climb_began(site, float(x[best]), step),
            sites=tuple(sites[order].tolist()), n_watched=n_judged,
            evidence=rise_evidence(
                self._sites[site], value, usual, n_window, float(mad[best]), (2.0 ** path[best]).tolist(),
                len(order), n_judged,
            ),
        )  # fmt: skip

    def _find_surge(self, step: int, now: Now, gradients: Now, past: _Past) -> GrowthFinding | None:
        over, ceiling, n_known = self._above_ceiling(gradients, past, self._surge)
        if not self._enough(int(np.count_nonzero(over)), n_known):
            self._surged = False
            return None
        witnesses = self._witnesses(now)
        if witnesses is None:
            return None
        above = gradients.log_rms - ceiling
        order = np.flatnonzero(over)[np.argsort(-above[over], kind="stable")]
        best = order[0]
        site, value = int(gradients.sites[best]), float(2.0 ** gradients.log_rms[best])
        median, mad = self._medians(gradients.sites[best : best + 1])
        return GrowthFinding(
            rule="surge", site=site, step=step, value=value, median=2.0 ** float(median[0]), spread=float(mad[0]),
            ratio=float(2.0 ** above[best]), since=self._climb_began(site, float(gradients.log_rms[best]), step),
            sites=tuple(gradients.sites[order].tolist()), n_watched=n_known,
            evidence=surge_evidence(
                self._sites[site], value, float(2.0 ** ceiling[best]), len(order), n_known, witnesses
            ),
        )  # fmt: skip

    def _witnesses(self, now: Now) -> tuple[int, int, str, float] | None:
        """Who went along with a surge of the gradients: how many, of how many, what, by what ratio at least."""
        before, self._surged = self._surged, False
        kinds = self._kinds[now.sites]
        for kind, what, gain, n_steps in WITNESSES:
            of_kind = kinds == kind
            sites = now.sites[of_kind]
            past = _Past(self.history.counts[sites], self.history.settled[sites])
            over, _, n_of = self._above_ceiling(Now(sites, now.log_rms[of_kind]), past, gain)
            if n_of and over.sum() >= self._share * n_of:
                if n_steps == 1 or before:
                    return int(over.sum()), n_of, what, 2.0**gain
                self._surged = True
        return None

    def _above_ceiling(self, now: Now, past: _Past, gain: float) -> tuple[Bools, Floats, int]:
        """Which sites are `gain` doublings above the largest value before, that value, and how many sites have one."""
        counts, ceiling = past
        young = np.flatnonzero(counts < self._warmup)
        if len(young):
            ceiling = ceiling.copy()
            ceiling[young] = self.history.values(now.sites[young]).max(axis=1)  # window > warmup: all of its values
        known = counts > 0
        over: Bools = known & (now.log_rms - ceiling >= gain)  # log_rms is finite, so no inf - inf
        return over, ceiling, int(np.count_nonzero(known))

    def _follow(self, step: int, now: Now, finding: GrowthFinding | None) -> None:
        """End the episode when it is over."""
        episode = self._episode
        if episode is None:
            return
        if finding is not None:
            episode.last_growth = step
        seen, mine, theirs = np.intersect1d(episode.sites, now.sites, assume_unique=True, return_indices=True)
        back = int((now.log_rms[theirs] <= episode.normal[mine]).sum())
        if (len(seen) and 2 * back >= len(seen)) or step - episode.last_growth >= self.history.window:
            self._episode = None

    def _medians(self, sites: Ints) -> tuple[Floats, Floats]:
        """Median and MAD (both in doublings) of the sites' windows."""
        n = np.minimum(self.history.counts[sites], self.history.window)
        values = self.history.values(sites)
        median = _median(np.where(values > -np.inf, values, np.inf), n)
        away = np.abs(values - median[:, None])  # inf in empty slots
        return median, _median(away, n)

    def _climb_began(self, site: int, x: float, step: int) -> int:
        """The first of the consecutive rising steps that end now."""
        k = min(int(self.history.counts[site]), self.history.window)
        path = np.append(self.history.newest(np.array([site]), k)[0], x)
        steps = [*self.history.newest_steps(site, k).tolist(), step]
        at = len(path) - 1
        while at > 1 and path[at - 1] > path[at - 2]:
            at -= 1
        return int(steps[at])

    def _enough(self, n: int, of: int) -> bool:
        """Together, and never a single site: one gradient alone is not an explosion of the program."""
        return n >= 2 and n >= self._share * of

    def _learn_kinds(self) -> None:
        if len(self._kinds) < len(self._sites):  # the table only grows
            new = [int(self._sites[i].kind) for i in range(len(self._kinds), len(self._sites))]
            self._kinds = np.concatenate([self._kinds, np.array(new, np.int8)])
            self._is_gradient = np.isin(self._kinds, _GRADIENTS)


def _median(values: Floats, n: Ints) -> Floats:
    """Median of the n smallest values of each row (the others are inf: empty slots)."""
    ordered = np.sort(values, axis=1)
    rows = np.arange(len(values))
    middle: Floats = (ordered[rows, (n - 1) // 2] + ordered[rows, n // 2]) / 2
    return middle
