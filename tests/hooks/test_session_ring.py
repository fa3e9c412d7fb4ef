"""A session's own interface: ring, counters, switches, watched tensors, calls inside compiled graphs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nanscan.buffer import drain
from nanscan.record import Flag, LinkCode, Phase
from nanscan.sites import NO_SITE


@pytest.mark.parametrize(("asked", "got"), [(1, 2), (2, 2), (5, 8), (64, 64), (65, 128)])
def test_capacity_is_a_power_of_two(core, asked, got):
    assert core.session(asked).capacity == got


def test_a_full_ring_drops_the_newest_and_counts_them(core):
    session = core.session(4)
    for i in range(7):
        assert session.scan_at(torch.full((2,), float(i)), site=0, phase=0)
    assert drain(session)["max"].tolist() == [0, 1, 2, 3]
    session.scan_at(torch.full((2,), 9.0), site=0, phase=0)
    late = drain(session)
    # A dropped record takes no ticket: the sequence has no holes.
    assert (late["seq"].tolist(), late["max"].tolist()) == ([5], [9.0])
    counters = session.counters()
    assert (counters["records"], counters["dropped"], counters["scans"]) == (5, 3, 8)
    assert session.drain() == b""


def test_a_half_full_ring_asks_to_be_drained(core, hook):
    watch = hook(core, nn.Linear(2, 2), capacity=8)
    watch.model(torch.ones(2))  # ENTER, INPUT, OUTPUT
    assert watch.attended == []
    watch.model(torch.ones(2))
    assert watch.attended == [2]
    watch.rows()
    watch.model(torch.ones(2))
    assert watch.attended == [2]


def test_an_inactive_session_writes_nothing(core, hook):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3)))
    watch.session.active = False
    watch.model(torch.ones(2, 3)).sum().backward()
    watch.session.scan_grads(3)
    watch.session.scan_values(4)
    assert not watch.session.scan_at(torch.ones(2), 0, 0)
    assert watch.rows() == []
    assert watch.session.batch == 1  # batches are numbered whether or not they are scanned
    watch.session.active = True
    watch.model(torch.ones(2, 3))
    assert watch.session.batch == 2


def test_switched_off_in_the_middle_of_a_call(core, hook):
    class Switches(nn.Module):
        def forward(self, x):
            watch.session.active = False
            return x * float("nan")

    watch = hook(core, nn.Sequential(Switches(), nn.Identity()))
    watch.model(torch.ones(2))
    assert core.module.module_depth() == 0
    assert [row.kind for row in watch.rows()] == ["ENTER", "INPUT"]


def test_a_closed_session_is_deaf(core, hook):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3)))
    loss = watch.model(torch.ones(2, 3)).sum()
    watch.rows()
    watch.session.close()
    assert watch.session.closed
    loss.backward()
    watch.model(torch.ones(2, 3))
    assert watch.rows() == []


def test_records_carry_the_step(core, hook):
    watch = hook(core, nn.Linear(2, 2))
    for step in (0, 5, 1 << 40):
        watch.session.step = step
        assert watch.session.step == step
        watch.model(torch.ones(2)).sum().backward()
        assert {row.step for row in watch.rows()} == {step}


def test_shapes_of_bad_records_are_interned(core):
    session = core.session(64)
    for sizes in ((2, 3), (4,), (2, 3), ()):
        session.scan_at(torch.full(sizes, math.nan), 0, 0)
    session.scan_at(torch.ones(2, 3), 0, 0)
    ids = drain(session)["shape"].tolist()
    assert [session.shape(i) for i in ids] == [(2, 3), (4,), (2, 3), (), ()]
    assert ids[0] == ids[2]
    assert ids[4] == 0
    assert session.shape(999) == ()


def test_scan_at_refuses_what_is_no_tensor(core):
    with pytest.raises(TypeError, match=r"tensor must be a torch.Tensor, got list"):
        core.session(2).scan_at([1.0], 0, 0)


def test_what_cannot_be_scanned_is_counted_by_reason(core):
    session = core.session(64)
    odd = [torch.ones(2, dtype=torch.int64), torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2) > 0]
    assert [session.scan_at(tensor, 0, 0) for tensor in odd] == [False] * 4
    unscanned = session.counters()["unscanned"]
    assert sorted(unscanned.values()) == [1, 1, 2]
    assert all(isinstance(reason, str) and len(reason) > 10 for reason in unscanned)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, about the odd tensors made here
def test_reasons_are_the_same_words_in_both(cores):
    from torch._subclasses.fake_tensor import FakeTensorMode

    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.ones(2)
    odd = [
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, device="meta"),
        torch.ones(2, 2).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.ones(2, dtype=torch.complex32),
        freed,
        fake,
    ]
    found = []
    for core in cores:
        session = core.session(64)
        for tensor in odd:
            session.scan_at(tensor, 0, 0)
        found.append(session.counters()["unscanned"])
    assert found[0] == found[-1]


def test_watched_tensors_are_held_weakly(core):
    session = core.session(64)
    weight, gone = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    buffer = torch.zeros(4)
    for tensor, site, parameter in ((gone, 0, True), (weight, 2, True), (buffer, 4, False)):
        session.watch(tensor, site, parameter)
    del gone
    weight.grad = torch.full((2,), 7.0)
    session.scan_grads(Phase.BACKWARD)
    session.scan_values(Phase.OPTIMIZER)
    assert [(r["site"], r["n"], r["phase"]) for r in drain(session)] == [(3, 2, 3), (2, 2, 4), (4, 4, 4)]
    session.clear_watched()
    session.scan_values(Phase.OPTIMIZER)
    assert session.drain() == b""


def test_a_new_session_knows_nothing_of_an_old_one(core):
    # GIVEN sessions one after the other, that may well get the same address, and a tensor that outlives them
    x, bad = torch.ones(3), torch.full((3,), math.nan)
    for _ in range(24):
        session = core.session(4096)
        root, reader = session.tap(0, True), session.tap(4)
        with torch.no_grad():
            reader.enter((x,), {})
            reader.leave(nn.Identity(), (x,), {}, bad)
            root.enter((x,), {})
            root.leave(nn.Identity(), (x,), {}, None)
        records = drain(session)
        # THEN the reader, which comes first, has never heard of x
        assert records["flags"].tolist()[:3] == [Flag.TOP | Flag.BAD, Flag.INPUT, Flag.LINK]
        assert records["n"][2] == LinkCode.PARENT
        session.close()
        del session, root, reader


def traced(session, bad):
    x = torch.ones(2, 3)
    y = x * (math.nan if bad else 1.0)
    session.traced_begin(site=4, inputs=[x, x])
    return [
        session.traced_call(site=8, parent_site=4, root=False, inputs=[x], outputs=[y, y]),
        session.traced_call(site=4, parent_site=-1, root=True, inputs=[x, x], outputs=[y]),
    ]


@pytest.mark.parametrize("bad", [False, True])
def test_calls_inside_a_compiled_graph(cores, bad):
    streams = []
    for core in cores:
        session = core.session(64)
        for _ in range(2):
            assert traced(session, bad) == [bad, bad]
        streams.append(drain(session))
    names = [name for name in streams[0].dtype.names if name not in ("mean", "m2")]
    for name in names:
        assert streams[0][name].tolist() == streams[-1][name].tolist(), name
    records = streams[-1]
    enters = records[records["flags"] & Flag.ENTER > 0]
    assert enters["n"].tolist() == [0, 1]
    assert len(set(records["call"].tolist())) == 4  # two modules, two batches
    parents = records[(records["flags"] & Flag.LINK > 0) & (records["n"] == LinkCode.PARENT)]
    expected = [(4, enters["call"][i]) if j == 0 else (NO_SITE, 0) for i in range(2) for j in range(2)] if bad else []
    assert [(r["site"], r["n_nan"]) for r in parents] == expected
