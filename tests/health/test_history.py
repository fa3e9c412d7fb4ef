"""The ring of last values per site."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanscan.health import SiteHistory
from nanscan.record import DType, Flag
from nanscan.sites import NO_SITE


def test_last_gives_steps_and_absmax_oldest_first(records_of):
    history = SiteHistory(window=4, recent=2)
    for step in range(6):
        history.observe(step, records_of({3: -float(step + 1)}))
    assert history.last(3, 3) == [(3, 4.0), (4, 5.0), (5, 6.0)]
    assert history.last(3, 10) == [(2, 3.0), (3, 4.0), (4, 5.0), (5, 6.0)]  # no more than the window
    assert history.last(3, 2, before=4) == [(2, 3.0), (3, 4.0)]


@pytest.mark.parametrize("site", [0, 7, 10_000, -1])
def test_an_unknown_site_has_no_past(records_of, site):
    history = SiteHistory()
    history.observe(0, records_of({3: 1.0}))
    assert history.last(site, 5) == []


def test_several_records_of_a_site_in_a_step_count_once_with_the_largest(records_of):
    history = SiteHistory()
    history.add(np.concatenate([records_of({1: 2.0}), records_of({1: 8.0}), records_of({1: 4.0})]))
    history.add(records_of({1: 1.0}))
    history.end(0)
    assert history.last(1, 5) == [(0, 8.0)]
    assert history.newest(np.array([1]), 1)[0, 0] == 3.0  # log2


def test_rms_comes_from_mean_and_m2_and_complex_counts_both_parts(records_of):
    # GIVEN [3, 5] and the complex [3 + 5j]: RMS sqrt(17) for both
    real = records_of({1: 4.0}, n=2, m2=2.0)
    both = records_of({2: 4.0}, n=1, m2=2.0, dtype=DType.C64)
    history = SiteHistory()
    history.observe(0, np.concatenate([real, both]))
    assert history.newest(np.array([1, 2]), 1)[:, 0] == pytest.approx([math.log2(17) / 2] * 2)


def test_a_mean_whose_square_overflows_is_kept(records_of):
    history = SiteHistory()
    history.observe(0, records_of({1: 2.0**600}))
    assert history.newest(np.array([1]), 1)[0, 0] == 600.0


@pytest.mark.parametrize("flag", [Flag.BAD, Flag.INPUT, Flag.PARAM, Flag.LINK, Flag.ENTER, Flag.BAD | Flag.TOP])
def test_records_that_are_no_site_statistics_are_ignored(records_of, flag):
    history = SiteHistory()
    history.observe(0, records_of({1: 1.0}, flags=flag))
    assert history.last(1, 5) == []


@pytest.mark.parametrize(
    "fields",
    [{"n": 0}, {"mean": math.nan}, {"m2": math.inf}, {"mean": 0.0}, {"site": NO_SITE}],
    ids=["empty", "nan mean", "infinite m2", "all zeros", "no site"],
)
def test_records_without_a_finite_size_are_ignored(records_of, fields):
    history = SiteHistory()
    history.observe(0, records_of({1: 1.0}, **fields))
    assert history.last(1, 5) == []
    assert len(history) < 10_000


@pytest.mark.parametrize("flag", [0, Flag.TOP, Flag.RECOMPUTE, Flag.KNOWN])
def test_ordinary_flags_do_not_matter(records_of, flag):
    history = SiteHistory()
    history.observe(0, records_of({1: 1.0}, flags=flag))
    assert history.last(1, 5) == [(0, 1.0)]


def test_settled_leaves_the_newest_values_out(records_of):
    history = SiteHistory(window=8, recent=3)
    for step, value in enumerate([4.0, 1.0, 2.0, 16.0, 1.0]):
        history.observe(step, records_of({0: value}))
    # the value to come and the two before it do not count: 4, 1, 2 do
    assert history.settled[0] == 2.0
    history.observe(5, records_of({0: 1.0}))
    assert history.settled[0] == 4.0  # 16 has aged


def test_settled_outlives_the_window(records_of):
    history = SiteHistory(window=4, recent=2)
    for step, value in enumerate([1024.0] + [1.0] * 20):
        history.observe(step, records_of({0: value}))
    assert history.settled[0] == 10.0


def test_memory_is_bounded_by_sites_not_steps(records_of):
    history = SiteHistory(window=4, recent=2)
    for step in range(100):
        history.observe(step, records_of({5: 1.0, 900: 1.0}))
    assert 901 <= len(history) <= 1802
    assert len(history.values(np.array([5]))[0]) == 4


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"window": 1}, r"window=1\): keep at least 2"), ({"window": 4, "recent": 5}, r"recent=5\): must be between 1")],
    ids=["window", "recent"],
)
def test_arguments_are_checked(kwargs, words):
    with pytest.raises(ValueError, match=words):
        SiteHistory(**kwargs)
