"""What goes wrong without a NaN: per-site histories, and the detectors that read them. Needs numpy only."""

from __future__ import annotations

from nanscan.health.finding import GrowthFinding
from nanscan.health.growth import GrowthWatch
from nanscan.health.history import SiteHistory

__all__ = ["GrowthFinding", "GrowthWatch", "SiteHistory"]
