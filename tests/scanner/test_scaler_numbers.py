"""What is said of a loss scale: its numbers are those of the real scaler, a skip that is meant needs no action, and a
scale that has collapsed is told as such."""

from __future__ import annotations

import pytest
import torch
from torch.amp import GradScaler

import nanscan

LEVELS = pytest.mark.parametrize("level", ["module", "op"])


class Scaled:
    """A training under a GradScaler; `scales` has the scale before and after each update()."""

    def __init__(self, training, fused=False, **options):
        self.net, self.optimizer = training.net, training.optimizer
        if fused:
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.scaler = GradScaler("cpu", **{"init_scale": 65536.0, **options})
        self.scales = []

    def step(self, bad=None, overflow=False, clip=False):
        self.net.trap.bad = bad
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(3, 4)).sum() * (1e35 if overflow else 1.0)  # finite, until it is scaled
        self.scaler.scale(loss).backward()
        if clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        self.scales.append((before, self.scaler.get_scale()))


def skips(scanner):
    return [text for event in scanner.events for text in event.evidence if text.startswith("expected loss-scale skip")]


def flat(scanner):
    return " ".join(scanner.report().split())


@LEVELS
@pytest.mark.parametrize("fused", [False, True], ids=["a step left out", "a fused optimizer"])
@pytest.mark.parametrize("factor", [0.5, 0.3])
def test_an_expected_skip_has_the_scales_numbers(training, level, fused, factor):
    scaled = Scaled(training, fused, backoff_factor=factor)
    scanner = nanscan.enable(scaled.net, level=level)
    for i in range(4):
        scaled.step(overflow=i == 1)
    scanner.flush()
    before, after = scaled.scales[1]
    assert after < before == 65536.0
    assert scanner.first is None
    assert skips(scanner)[0] == (
        "expected loss-scale skip: the step was left out, and update() takes the loss scale "
        f"from {before:.10g} to {after:.10g}; nothing to do"
    )


@LEVELS
@pytest.mark.parametrize("clip", [False, True])
def test_an_error_in_a_skipped_step(training, level, clip):
    scaled = Scaled(training)
    scanner = nanscan.enable(scaled.net, level=level, on_anomaly="record", escalate=False)
    for i in range(5):
        scaled.step(bad="forward" if i == 2 else None, clip=clip)
    after = scanner._levels.aftermath
    assert scanner.first.step == 2
    assert (after.skipped, after.scale_from, after.scale_to) == (True, *scaled.scales[2])
    assert (after.parameters, after.spread_to, after.later_steps, after.skips_in_a_row) == (0, 0, 0, 0)
    assert all(bool(p.isfinite().all()) for p in scaled.net.parameters())
    assert "the step was skipped; the loss scale goes from 65536 to 32768" in flat(scanner)


@LEVELS
def test_a_collapse_has_its_number_of_skips_and_its_scale(training, level):
    # GIVEN a gradient that is bad whatever the scale is
    scaled = Scaled(training)
    scanner = nanscan.enable(scaled.net, level=level, on_anomaly="record", escalate=False)
    for i in range(25):
        scaled.step(bad="backward" if i >= 3 else None)
    step = scanner.first.step
    in_a_row = sum(after < before for before, after in scaled.scales[: step + 1])
    after = scanner._levels.aftermath
    assert in_a_row == step - 2 == 17
    assert (after.skips_in_a_row, after.scale_to) == (in_a_row, scaled.scales[step][1])
    assert f"the loss scale has collapsed to {scaled.scales[step][1]:g} after 17 skips in a row" in flat(scanner)
    assert flat(scanner).count("collapsed") == 1


@LEVELS
def test_skipped_steps_before_the_error_are_clean_ones(training, level):
    # GIVEN two skips, which write nothing, just before an update that makes parameters bad
    scaled = Scaled(training)
    scanner = nanscan.enable(scaled.net, level=level, on_anomaly="record", escalate=False)
    for i in range(5):
        scaled.step(overflow=i in (3, 4))
    scaled.optimizer.param_groups[0]["lr"] = float("nan")
    scaled.step()
    after = scanner._levels.aftermath
    assert (scanner.first.step, after.parameters, after.last_clean) == (5, 4, 4)


def test_a_scale_on_a_device_is_looked_at_only_after_a_wait():
    from nanscan.hooks.scaler_hook import _scale_of

    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    assert _scale_of(scaler, waited=False) == _scale_of(scaler, waited=True) == (8.0, 4.0)
    scaler._scale = torch.ones((), device="meta")
    assert _scale_of(scaler, waited=False) is None
    assert _scale_of(GradScaler("cpu", enabled=False), waited=True) is None
