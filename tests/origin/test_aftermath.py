"""The counts behind the "after" row on synthetic records: what a step had bad, and what happened before the update."""

from __future__ import annotations

import pytest

from nanscan.origin.after import AftermathWatch
from nanscan.record import Phase

ALL = ("a.weight", "b.weight", "block.fc.weight", "head.weight", "head.bias")


class Seen:
    """What health knows: gradients that were good, and the last good update."""

    def __init__(self, sites=(), step=None):
        self.sites, self.step = sites, step

    def seen_good(self):
        return self.sites

    def updated_before(self, step):
        return self.step


def gradients(sim, kind, names, phase=Phase.BACKWARD, **fields):
    n_nan, n_pos, n_zero = {"all nan": (32, 0, 0), "nan": (2, 0, 0), "inf": (0, 2, 0), "zero": (0, 0, 32),
                            "2 nan, zero": (2, 0, 30), "ok": (0, 0, 0)}[kind]  # fmt: skip
    for name in names:
        sim.write(
            n=32, n_nan=n_nan, n_posinf=n_pos, n_zero=n_zero, flags=1 if n_nan or n_pos else 0, shape=1, dtype=2,
            site=sim.params[name] + 1, phase=phase, **fields,
        )  # fmt: skip


@pytest.fixture
def step(sim):
    """step(backward, update): one step whose gradients are so after backward, and so at the update."""

    def run(backward, update):
        sim.forward()
        for kind, names in backward.items():
            gradients(sim, kind, names)
        events = sim.decide("backward")
        for kind, names in update.items():
            gradients(sim, kind, names, Phase.OPTIMIZER)
        events += sim.decide("optimizer")
        events += sim.end()
        assert [event.severity for event in events] == ["error"]
        return sim.origin.aftermath

    return run


@pytest.mark.parametrize(
    ("backward", "update", "spread", "zeroed"),
    [
        pytest.param({"nan": ALL[:1]}, {"all nan": ALL}, (1, 5), 0, id="clipping by NaN"),
        pytest.param({"nan": ALL[:2]}, {"all nan": ALL[1:3]}, (2, 3), 0, id="of two bad ones, some parameters"),
        pytest.param({"nan": ALL}, {"all nan": ALL}, (0, 0), 0, id="all were bad"),
        pytest.param({"nan": ALL[:1]}, {"nan": ALL}, (0, 0), 0, id="bad in places: no clipping"),
        pytest.param({"inf": ALL[:1]}, {"2 nan, zero": ALL[:1], "zero": ALL[1:]}, (0, 0), 4, id="clipping by Inf"),
        pytest.param({"inf": ALL[:1]}, {"nan": ALL[:1], "zero": ALL[1:]}, (0, 0), 0, id="the rest of it is not 0"),
        pytest.param({"nan": ALL[:1]}, {"2 nan, zero": ALL[:1], "zero": ALL[1:]}, (0, 0), 0, id="NaN before"),
        pytest.param({"inf": ALL[:1]}, {"2 nan, zero": ALL[:1], "ok": ALL[1:]}, (0, 0), 0, id="others were kept"),
        pytest.param({"inf": ALL[:1]}, {"zero": ALL}, (0, 0), 0, id="nan_to_num, not clipping"),
    ],
)  # fmt: skip
def test_clipping(step, backward, update, spread, zeroed):
    after = step(backward, update)
    assert (after.spread_from, after.spread_to) == spread
    assert after.zeroed == zeroed


def test_only_the_first_update_of_a_step_is_looked_at(sim):
    sim.forward()
    gradients(sim, "nan", ALL[:1])
    sim.decide("backward")
    gradients(sim, "all nan", ALL[:3], Phase.OPTIMIZER)
    sim.decide("backward")
    assert sim.origin.aftermath.spread_to == 3, "asked in the middle"
    sim.decide("optimizer")
    gradients(sim, "all nan", ALL[3:])  # a second backward, through bad parameters, and its clipping
    gradients(sim, "all nan", ALL, Phase.OPTIMIZER)
    sim.decide("optimizer")
    sim.end()
    after = sim.origin.aftermath
    assert (after.spread_from, after.spread_to, after.gradients) == (1, 3, 5)


def test_good_gradients_of_the_step_count_as_gradients(make_sim):
    sim = make_sim()
    sim.origin._after = AftermathWatch(sim.sites, Seen([sim.params[name] + 1 for name in ALL[1:4]] + [sim.base["a"]]))
    sim.forward()
    gradients(sim, "nan", ALL[:1])
    sim.end()
    after = sim.origin.aftermath
    assert (after.gradients, after.n_gradients) == (1, 4)


@pytest.mark.parametrize(
    ("update", "skips", "expected"),
    [(2, 2, 4), (2, 0, 2), (3, 2, 3), (None, 2, None)],
    ids=["skips since then", "no skips", "a step that was not watched", "no update so far"],
)
def test_skipped_steps_leave_parameters_as_they_were(make_sim, update, skips, expected):
    sim = make_sim()
    sim.origin._after = AftermathWatch(sim.sites, Seen(step=update))
    sim.step = 3
    for _ in range(skips):
        sim.forward()
        gradients(sim, "inf", ALL)
        sim.end(scaler=True, skipped=True)
    sim.step = 5
    sim.forward()
    sim.values(names=["a.weight"])
    sim.decide("optimizer")
    assert sim.origin.aftermath.last_clean == expected
    sim.end()
    assert sim.origin.aftermath.last_clean == expected


def test_a_step_that_never_ends_is_counted_in_bounded_memory(sim, monkeypatch):
    limit = 100  # records
    monkeypatch.setattr("nanscan.origin.after.MAX_HELD", limit)
    monkeypatch.setattr("nanscan.origin.neighbour.MAX_HELD", limit)
    watch, pieces = sim.origin._after, sim.origin._neighbours._pieces
    sim.forward()
    gradients(sim, "nan", ALL[:1])
    sim.decide("backward")
    for _ in range(20):
        for _ in range(7):
            gradients(sim, "all nan", ALL, Phase.OPTIMIZER)
        sim.decide("backward")
        assert watch._n_held <= limit
        assert sum(map(len, pieces)) <= limit
    assert (sim.origin.aftermath.spread_from, sim.origin.aftermath.spread_to) == (1, 5)


def test_steps_without_an_error_leave_nothing_behind(sim):
    for _ in range(3):
        with sim.call("", [], root=True) as root:
            sim.leaf("block.mask", root.inputs, "-inf")
        sim.param_grads("-inf", ["a.weight"])
        sim.end()
    watch = sim.origin._after
    assert (watch._held, watch._n_held, list(sim.origin._neighbours._pieces)) == ([], 0, [])
