"""Healthy is two lines, and never more than the facts allow."""

from __future__ import annotations

import pytest

from nanscan.report import Watched, healthy_lines


@pytest.mark.parametrize(
    ("watched", "first"),
    [
        pytest.param(
            Watched(steps=12000, ranks=8, skips=3, share=0.007),
            "nanscan: healthy. 12000 steps x 8 ranks, 0 anomalies, 3 loss-scale skips (expected). overhead 0.7 %.",
            id="all",
        ),
        pytest.param(Watched(steps=1), "nanscan: healthy. 1 step, 0 anomalies.", id="one step"),
        pytest.param(Watched(), "nanscan: nothing seen yet. 0 steps", id="nothing is not healthy"),
        pytest.param(
            Watched(steps=5, allowed=2, infos=1, dropped=7, unscanned=1),
            "nanscan: healthy. 5 steps, 0 anomalies, 2 allowed, 1 info event, 7 records dropped, 1 tensor not scanned.",
            id="what weakens the verdict",
        ),
    ],
)
def test_two_lines(watched, first):
    lines = healthy_lines(watched, next_step="nanscan report runs/x")
    assert lines[0] == first[:100]
    assert len(lines) == 2
    assert lines[1] == "  watched 0 modules, 0 parameters (level=module); next: nanscan report runs/x"
