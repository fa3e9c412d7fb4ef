"""The device ring: order, overflow, streams, graph replays, and the memory behind launches."""

from __future__ import annotations

import numpy as np
import pytest

from nanscan.record import DType, Flag


@pytest.fixture
def small(oracle):
    """small(k) -> a tensor of k ones and a NaN."""

    def make(k: int):
        values = np.append(np.ones(k, np.float32), np.float32(np.nan))
        return oracle.contiguous(DType.F32, values.view(np.uint32))

    return make


@pytest.fixture
def start(script, small):
    """start(n_tensors, capacity) -> steps with tensor i of i + 1 elements."""

    def make(n: int, capacity: int = 4096):
        steps = script.Script().open(capacity)
        for i in range(n):
            steps.tensor(small(i))
        return steps

    return make


def test_header_fields_come_back(start, execute):
    (record,) = execute(start(3).scan(2, step=41).run(1).poll()).records["record"]
    given = {"seq": 1, "step": 41, "site": 2, "output_index": 7, "device": 3, "phase": 2, "call": 0, "shape": 0}
    assert {name: int(record[name]) for name in given} == given
    assert record["flags"] == Flag.BAD
    assert record["n"] == 3


def test_nothing_arrives_before_it_has_run(start, execute):
    steps = start(3)
    for i in range(3):
        steps.scan(i)
    steps.poll().counters().run(1, 2).poll().counters().run(1).poll().counters()
    outcome = execute(steps)
    assert outcome.counters == [(3, 0, 0), (3, 2, 0), (3, 3, 0)]
    assert list(outcome.records["record"]["site"]) == [0, 1, 2]
    assert list(outcome.records["stamp"]) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_streams_mix_and_each_keeps_its_order(start, execute, seed):
    steps = start(30)
    for i in range(30):
        steps.scan(i, stream=i % 3)
    records = execute(steps.run(seed).poll()).records["record"]
    sites = records["site"].tolist()
    assert sorted(sites) == list(range(30))
    for stream in range(3):
        mine = [site for site in sites if site % 3 == stream]
        assert mine == sorted(mine)
    assert sites != sorted(sites)


def test_more_streams_than_areas_take_turns(oracle, script, execute):
    """Streams beyond the 32 with scratch of their own share one; tensors of several blocks need it."""
    rng = np.random.default_rng(0)
    steps = script.Script().open()
    for i in range(40):
        steps.scan(steps.tensor(oracle.contiguous(DType.F32, oracle.random_bits(rng, DType.F32, 4200))), stream=i + 1)
    outcome = execute(steps.run(3).poll())
    assert sorted(outcome.records["record"]["site"]) == list(range(40))
    for record in outcome.records["record"]:
        assert not oracle.complaints(record, steps.tensors[record["site"]], 1e-6)


def test_a_full_ring_drops_the_newest_and_counts(start, execute):
    steps = start(10, capacity=4)
    for i in range(10):
        steps.scan(i)
    steps.run(1).counters().poll().scan(9).run(1).poll().counters()
    outcome = execute(steps)
    assert outcome.counters == [(10, 10, 6), (11, 11, 6)]
    assert list(outcome.records["record"]["site"]) == [0, 1, 2, 3, 9]
    assert list(outcome.records["stamp"]) == [1, 2, 3, 4, 5]  # no hole where records were dropped


@pytest.mark.parametrize("sanitizer", ["plain", "tsan"])
def test_many_records_drop_at_once(start, execute, sanitizer):
    """Blocks of one launch meet at a ring that fills up: every record is either there or counted."""
    steps = start(50, capacity=8).many(*range(50)).run(2).counters().poll().counters()
    outcome = execute(steps, sanitizer)
    assert outcome.counters == [(50, 50, 42), (50, 50, 42)]
    assert len(set(outcome.records["record"]["site"])) == 8


def test_around_the_ring_many_times(start, execute):
    steps = start(3, capacity=4)
    for _ in range(20):
        steps.scan(0).scan(1).scan(2).run(1).poll(2).poll(2)
    records = execute(steps).records
    assert list(records["stamp"]) == list(range(1, 61))
    assert list(records["record"]["site"]) == [0, 1, 2] * 20


def test_replays_count_their_steps(start, execute):
    # GIVEN a graph of a scan and of a table of two
    steps = start(3).capture(5, True).scan(0, stream=5, step=10).many(1, 2, stream=5, step=10).capture(5, False)
    # WHEN it is replayed twice, with a scan outside between, and once more after a poll
    steps.run(1).poll().replay(5).scan(0, stream=5, step=99).replay(5).run(1).poll().replay(5).run(1).poll().counters()
    records = execute(steps).records["record"]
    # THEN capturing wrote nothing, and each replay has a step of its own
    told = [(int(r["site"]), int(r["step"]), bool(r["flags"] & Flag.REPLAY)) for r in records]
    graph = [[(0, 10 + k, True), (1, 10 + k, True), (2, 10 + k, True)] for k in range(3)]
    assert told[0] == graph[0][0]
    assert sorted(told[:3]) == graph[0]
    assert told[3] == (0, 99, False)
    assert sorted(told[4:7]) == graph[1]
    assert sorted(told[7:]) == graph[2]


def test_replays_are_counted_apart(start, execute):
    steps = start(2, capacity=2).capture(5, True).scan(0, stream=5).capture(5, False)
    for _ in range(5):
        steps.replay(5)
    outcome = execute(steps.scan(1).run(1).counters())
    ((launched, finished, dropped),) = outcome.counters
    assert (launched, finished, dropped) == (1, 1, 4)


def test_two_graphs_do_not_share_scratch(oracle, script, execute):
    """Captured on one stream, replayed side by side: each has an area of its own."""
    rng = np.random.default_rng(1)
    steps = script.Script().open()
    ids = [steps.tensor(oracle.contiguous(DType.F32, oracle.random_bits(rng, DType.F32, 6000))) for _ in range(4)]
    for stream in (5, 6):
        steps.capture(stream, True)
        for i in ids:
            steps.scan(i, stream=stream)
        steps.capture(stream, False)
    for stream in (5, 6, 5, 6):
        steps.replay(stream)
    outcome = execute(steps.run(4).poll())
    assert len(outcome.records) == 16
    for record in outcome.records["record"]:
        assert not oracle.complaints(record, steps.tensors[record["site"]], 1e-6)


def test_captures_beyond_what_there_is_are_refused(start, execute):
    """A graph keeps its scratch for good, so there is an end to it; nothing of the refused launch remains."""
    steps = start(1)
    for stream in range(1, 35):
        steps.capture(stream, True).scan(0, stream=stream).capture(stream, False)
    outcome = execute(steps.scan(0).run(1).poll().counters())
    assert outcome.lines == ["error 701", "error 701", "counters 1 1 0"]
    assert len(outcome.records) == 1


def test_more_tables_under_way_than_there_is_room_for(start, execute):
    """The 65th finds no slot: its tensors go one by one. All arrive, and memory is used again afterwards."""
    steps = start(3)
    for _ in range(70):
        steps.many(0, 1, 2)
    steps.run(1).poll().counters()
    for _ in range(70):
        steps.many(0, 1, 2)
    outcome = execute(steps.run(1).poll().counters())
    assert outcome.counters == [(210, 210, 0), (420, 420, 0)]
    assert len(outcome.records) == 420


def test_tables_leave_in_any_order(start, execute):
    """Tables of several streams are done out of order; each piece of memory is used again only when it is free."""
    steps = start(40)
    for k in range(60):
        steps.many(*range(k % 7, 40), stream=k % 4).run(k, 1)
    records = execute(steps.run(1).poll()).records["record"]
    assert len(records) == sum(40 - k % 7 for k in range(60))
    assert (records["n"] == records["site"] + 1).all()
    assert (records["first_bad"] == records["site"]).all()
