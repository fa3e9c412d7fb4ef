"""The rule of the growth watch, on planted histories."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanscan.health import GrowthWatch
from nanscan.sites import SiteTable

N = 8  # modules with one parameter each


@pytest.fixture
def sites():
    table = SiteTable()
    for i in range(N):
        table.add_module(f"m{i}", "Linear")
    for i in range(N):
        table.add_parameter(f"m{i}.weight", f"m{i}", "Linear")
    return table


OUTPUTS = [4 * i for i in range(N)]
GRADS = [4 * i + 2 for i in range(N)]  # reaching outputs
PARAMS = [4 * N + 2 * i for i in range(N)]
PARAM_GRADS = [site + 1 for site in PARAMS]


@pytest.fixture
def play(sites, records_of):
    """play(curve, ...) -> findings: every gradient follows the curve (log2), the rest stays at 1."""

    def run(curve, grown=GRADS + PARAM_GRADS, outputs=None, params=None, noise=0.02, watch=None, start=0):
        watch = watch or GrowthWatch(sites)
        rng = np.random.default_rng(start)
        findings = []
        for step, x in enumerate(curve, start):
            log = dict.fromkeys(OUTPUTS + GRADS + PARAMS + PARAM_GRADS, 0.0)
            log |= dict.fromkeys(grown, x)
            log |= dict.fromkeys(OUTPUTS, outputs[step - start] if outputs else 0.0)
            log |= dict.fromkeys(PARAMS, params[step - start] if params else 0.0)
            findings += watch.observe(step, records_of({s: 2.0 ** (v + rng.normal(0, noise)) for s, v in log.items()}))
        return findings

    return run


QUIET = [0.0] * 40
CLIMB = [0.4 * k for k in range(1, 12)]  # 32% a step


def test_a_climb_out_of_a_quiet_past_is_found_once(play):
    (found,) = play(QUIET + CLIMB)
    assert found.rule == "rise"
    assert 43 <= found.step <= 46
    assert found.since in (39, 40)  # noise may add a step
    assert found.n_watched == 2 * N
    assert found.n_others == 2 * N - 1
    assert found.ratio == pytest.approx(found.value / found.median)
    assert found.phase == "backward"


def test_evidence_has_the_numbers(play):
    (found,) = play(QUIET + CLIMB)
    first, spread, path, together = found.evidence
    assert "the gradient" in first
    assert f"{found.value:.3g}" in first
    assert "times the median of its last 32 steps" in first
    assert "doublings" in spread
    assert path.startswith("it rose in each of the last 5 steps: ")
    assert together == "16 of 16 gradients rose together"


def test_the_strongest_site_is_named(play, sites, records_of):
    # GIVEN one gradient that climbs twice as fast as the others
    watch = GrowthWatch(sites)
    findings = []
    for step, x in enumerate(QUIET + CLIMB):
        values = dict.fromkeys(GRADS + PARAM_GRADS, 2.0**x) | {PARAM_GRADS[3]: 4.0**x}
        findings += watch.observe(step, records_of(values))
    (found,) = findings
    assert found.site == found.sites[0] == PARAM_GRADS[3]
    assert found.evidence[0].startswith("the gradient of m3.weight has RMS ")


@pytest.mark.parametrize(
    "curve",
    [
        QUIET,
        [*QUIET, 6.0, *QUIET],  # a heavy-tailed batch
        [*QUIET, 1.0, *([1.0] * 20), 2.0, *([2.0] * 20), 3.0],  # a loss scale that doubles
        [*QUIET, *([5.0] * 40)],  # another task, batch size or unit: a jump, not a climb
        [0.4 * k for k in range(100)],  # natural growth from small beginnings, from the first step on
        [*QUIET, *[0.1 * k for k in range(9)], *QUIET],  # a climb below min_ratio
        [*([8.0] * 20), *[8 - 0.2 * k for k in range(40)], *CLIMB],  # back up, but not above what it was
        [*([0.0] * 10), *CLIMB[:4]],  # still warming up
    ],
    ids=["quiet", "spike", "doublings", "jump", "natural", "wobble", "below the start", "young"],
)
def test_silence(play, curve):
    assert play(curve) == []


@pytest.mark.parametrize("n", [0, 1, 7])
def test_fewer_than_half_of_the_gradients_are_no_explosion(play, n):
    assert play(QUIET + CLIMB, grown=(GRADS + PARAM_GRADS)[:n]) == []


def test_a_single_gradient_is_never_judged_alone(sites, records_of):
    watch = GrowthWatch(sites)
    assert [
        f for step, x in enumerate(QUIET + CLIMB) for f in watch.observe(step, records_of({GRADS[0]: 2.0**x}))
    ] == []


def test_noisy_gradients_need_a_larger_climb(play):
    # GIVEN gradients that wander by a factor of two either way
    assert play(QUIET + CLIMB[:5], noise=0.7) == []


def test_an_episode_ends_when_the_gradients_are_back(play, sites):
    watch = GrowthWatch(sites)
    (first,) = play(QUIET + CLIMB, watch=watch)
    # WHEN everything returned to normal, and a second climb goes beyond the first
    higher = [0.0] * 40 + [0.8 * k for k in range(1, 12)]
    (second,) = play(higher, watch=watch, start=100)
    assert first.step < 100 < second.step


def test_an_episode_ends_after_a_window_at_a_new_level(play, sites):
    watch = GrowthWatch(sites)
    assert len(play(QUIET + CLIMB + [CLIMB[-1]] * 60, watch=watch)) == 1
    assert len(play([CLIMB[-1] + x for x in CLIMB], watch=watch, start=200)) == 1


def test_growth_that_goes_on_is_one_alarm(play):
    assert len(play(QUIET + [0.6 * k for k in range(1, 100)])) == 1


def test_a_surge_of_gradients_and_parameters_needs_no_warm_up(play):
    (found,) = play([0.0, 8.0], params=[0.0, 4.0])
    assert (found.rule, found.step, found.since) == ("surge", 1, 1)
    assert found.ratio == pytest.approx(256, rel=0.2)
    assert "16 of 16 gradients surged together" in found.evidence
    assert "8 of 8 parameters grew to more than 2 times their largest values before" in found.evidence


def test_outputs_must_agree_twice(play):
    assert play([*QUIET, 5.0], outputs=[*QUIET, 5.0]) == []  # a freak batch
    (found,) = play([*QUIET, 5.0, 6.0], outputs=[*QUIET, 5.0, 6.0])
    assert (found.rule, found.step) == ("surge", 41)
    assert "module outputs grew to more than 4 times" in found.evidence[2]


def test_freak_batches_that_do_not_follow_each_other_stay_silent(play):
    curve = [*QUIET, 5.0, 0.0, 5.0, 0.0, 5.0]
    assert play(curve, outputs=curve) == []


def test_a_surge_of_gradients_alone_is_the_losss_business(play):
    assert play([*QUIET, 12.0, 12.0]) == []


def test_gradients_that_begin_at_zero_are_not_a_surge(play):
    assert play([-math.inf, -20.0, -10.0], params=[0.0, 4.0, 4.0]) == []


def test_broken_values_are_not_judged(play, sites, records_of):
    watch = GrowthWatch(sites)
    play(QUIET, watch=watch)
    values = dict.fromkeys(OUTPUTS + GRADS + PARAMS + PARAM_GRADS, 2.0**20)
    assert watch.observe(41, records_of(values, flags=1)) == []


def test_a_step_may_come_in_pieces(play, sites, records_of):
    watch = GrowthWatch(sites)
    play([0.0], watch=watch)
    for group, value in ((GRADS, 2.0**8), (PARAM_GRADS, 2.0**8), (PARAMS, 2.0**4)):
        watch.add(records_of(dict.fromkeys(group, value)))
    assert [f.rule for f in watch.end_step(1)] == ["surge"]
    assert watch.end_step(2) == []


def test_sites_may_be_added_while_watching(play, sites, records_of):
    watch = GrowthWatch(sites)
    play(QUIET, watch=watch)
    late = sites.add_check("loss", None)
    assert watch.observe(41, records_of({late: 1.0})) == []
    assert watch.history.last(late, 1) == [(41, 1.0)]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"threshold": 0}, r"threshold=0\): must be positive"),
        ({"min_ratio": 1}, r"min_ratio=1, surge=8.0\): growth is a ratio above 1"),
        ({"share": 1.5}, r"share=1.5\): must be above 0"),
        ({"warmup": 64}, r"warmup=64, window=32\): needs 2 <= rise < warmup <= window"),
    ],
    ids=["threshold", "min_ratio", "share", "warmup"],
)
def test_arguments_are_checked(sites, kwargs, words):
    with pytest.raises(ValueError, match=words):
        GrowthWatch(sites, **kwargs)
