"""What the growth detector says: plain data, and the sentences that go with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanscan.sites import Site, SiteKind

REMEDY = "lower the learning rate, lengthen its warm-up, or clip the gradients' norm; then look at the site named here"


@dataclass(frozen=True, slots=True)
class GrowthFinding:
    """Gradients left their own history at `step`.

    Args:
        rule: "rise" (a steady climb out of a quiet history) or "surge" (far above everything before, and the model's
            outputs or parameters went along).
        site: where it is strongest.
        value, median: RMS now, and the median RMS of the site's window. spread: MAD of the window, in doublings (log2).
        ratio: value / median for a rise; value / the largest settled value before for a surge.
        since: the step with which the climb at `site` began.
        sites: all sites that grew, strongest first. n_watched: how many gradients could have.
        evidence: sentences with the numbers; the first one stands alone.
    """

    rule: str
    site: int
    step: int
    value: float
    median: float
    spread: float
    ratio: float
    since: int
    sites: tuple[int, ...]
    n_watched: int
    evidence: tuple[str, ...]
    phase: str = "backward"
    remedy: str = REMEDY

    @property
    def n_others(self) -> int:
        """How many sites grew besides the one named."""
        return len(self.sites) - 1


def gradient_of(site: Site) -> str:
    """``the gradient of fc.weight``, ``the gradient reaching blocks.2``."""
    if site.kind is SiteKind.PARAM_GRAD:
        return f"the gradient of {site.tensor}"
    return f"the gradient reaching {site.label}"


def rise_evidence(
    site: Site, value: float, median: float, n_window: int, spread: float, path: list[float], n: int, n_watched: int
) -> tuple[str, ...]:
    """path: RMS of the steps of the climb, the value before it first."""
    return (
        f"{gradient_of(site)} has RMS {value:.3g}, {times(value / median)} the median of its last {n_window} steps "
        f"({median:.3g}), and above every value it had settled at",
        f"that is {math.log2(value / median):.1f} doublings; its usual spread is {spread:.2g} of one (MAD)",
        f"it rose in each of the last {len(path) - 1} steps: {', '.join(f'{v:.3g}' for v in path)}",
        f"{n} of {n_watched} gradients rose together",
    )


def surge_evidence(
    site: Site, value: float, ceiling: float, n: int, n_watched: int, witnesses: tuple[int, int, str, float]
) -> tuple[str, ...]:
    """witnesses: how many of how many parameters, or outputs, went along, and by what ratio at least."""
    grew, of, what, ratio = witnesses
    return (
        f"{gradient_of(site)} has RMS {value:.3g}, {times(value / ceiling)} the largest value before ({ceiling:.3g})",
        f"{n} of {n_watched} gradients surged together",
        f"{grew} of {of} {what} grew to more than {ratio:.0f} times their largest values before",
    )


def times(ratio: float) -> str:
    """``2.3 times``, ``1.2e+08 times``."""
    return f"{ratio:.1f} times" if ratio < 100 else f"{ratio:.2g} times"
