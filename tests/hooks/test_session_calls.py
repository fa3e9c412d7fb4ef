"""The stack of module calls: who called whom, and that it recovers from whatever a forward does."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from nanscan.record import Flag, LinkCode


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Fails(nn.Module):
    def __init__(self, error=ValueError):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.error = error

    def forward(self, x):
        self.inner(x)
        raise self.error("on purpose")


class Forgiving(nn.Module):
    """Catches what its first child raises and goes on with the second."""

    def __init__(self):
        super().__init__()
        self.bad, self.good = Fails(), Log()

    def forward(self, x):
        try:
            return self.bad(x)
        except ValueError:
            return self.good(x)


class Countdown(nn.Module):
    """Calls itself."""

    def forward(self, x, n):
        return torch.log(x) if n == 0 else self(x * 1.0, n - 1) * 1.0


def parents(rows):
    """child call -> parent call, from the links of bad calls."""
    return {row.call: row.n_nan for row in rows if row.kind == "LINK" and row.link is LinkCode.PARENT}


def calls_of(rows, module):
    return [row.call for row in rows if row.kind == "OUTPUT" and row.module == module]


def test_a_module_called_many_times_gets_a_call_id_each_time(streams):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(3, 3)

        def forward(self, x):
            for _ in range(20):
                x = self.cell(x)
            return x * 1.0

    rows = streams(Root, lambda watch: watch.model(torch.ones(3)).sum().backward())
    calls = calls_of(rows, "cell")
    assert len(set(calls)) == 20
    assert calls == sorted(calls)
    # More than the first reader and maker are not named, and all twenty gradients are seen.
    assert len([row for row in rows if row.kind == "GRAD_OUTPUT" and row.module == "cell"]) == 20


def test_a_shared_module_keeps_its_first_name(streams):
    def build():
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.ReLU(), layer)

    rows = streams(build, lambda watch: watch.model(torch.ones(2, 3)))
    assert [row.module for row in rows if row.kind == "OUTPUT"] == ["0", "1", "0"]


def test_a_module_that_calls_itself(streams):
    rows = streams(Countdown, lambda watch: watch.model(-torch.ones(2), 3))
    calls = calls_of(rows, "")
    # The outermost call ends last and alone is TOP; each names the one around it.
    assert [bool(row.flags & Flag.TOP) for row in rows if row.kind == "OUTPUT"] == [False, False, False, True]
    assert [parents(rows)[call] for call in calls] == [*calls[1:], 0]
    assert len([row for row in rows if row.kind == "ENTER"]) == 1


def test_an_exception_that_the_parent_catches(streams):
    def drive(watch):
        watch.model(-torch.ones(2, 3))
        assert watch.core.module.module_depth() == 0

    rows = streams(Forgiving, drive)
    root = calls_of(rows, "")
    assert parents(rows)[calls_of(rows, "good")[0]] == root[0]
    assert calls_of(rows, "bad") == []


def test_an_exception_that_nobody_catches(streams):
    def drive(watch):
        for _ in range(3):
            with pytest.raises(ValueError, match="on purpose"):
                watch.model(torch.ones(2, 3))
            assert watch.core.module.module_depth() == 0

    rows = streams(lambda: nn.Sequential(Fails()), drive)
    assert [row.n for row in rows if row.kind == "ENTER"] == [0, 1, 2]


def test_reset_stack_after_an_interrupt(streams):
    # GIVEN an exception that hooks are not told of
    def drive(watch):
        with pytest.raises(KeyboardInterrupt):
            watch.model(torch.ones(2, 3))
        assert watch.core.module.module_depth() == 2
        watch.session.reset_stack()
        assert watch.core.module.module_depth() == 0
        assert watch.session.current_site() == 0xFFFFFFFF
        watch.model[0].error = ValueError
        with pytest.raises(ValueError, match="on purpose"):
            watch.model(torch.ones(2, 3))

    rows = streams(lambda: nn.Sequential(Fails(KeyboardInterrupt)), drive)
    assert [row.n for row in rows if row.kind == "ENTER"] == [0, 1]


def test_the_next_call_recovers_from_an_interrupt_by_itself(core, hook):
    watch = hook(core, nn.Sequential(Fails(KeyboardInterrupt), Log()))
    with pytest.raises(KeyboardInterrupt):
        watch.model(torch.ones(2, 3))
    watch.model[1](torch.ones(2))  # inside nothing: its own frame comes and goes
    assert core.module.module_depth() == 2
    watch.session.reset_stack()


def test_current_site_inside_a_forward(core, hook):
    seen = []

    class Asks(nn.Module):
        def forward(self, x):
            seen.append(watch.session.current_site())
            watch.session.scan_at(x * 2, watch.sites.add_check("here", "0"), 2)
            return x

    watch = hook(core, nn.Sequential(Asks()))
    watch.model(torch.ones(2))
    rows = watch.rows()
    check = next(row for row in rows if row.kind == "CHECK")
    assert watch.sites[seen[0]].module == "0"
    assert (check.call, check.max, check.phase) == (2, 2.0, 2)
    assert watch.session.current_site() == 0xFFFFFFFF


def test_a_submodule_called_from_outside_is_top(streams):
    rows = streams(lambda: nn.Sequential(nn.Linear(3, 3), Log()), lambda watch: watch.model[1](-torch.ones(2)))
    assert [(row.module, row.flags) for row in rows if row.kind == "OUTPUT"] == [("1", Flag.TOP | Flag.BAD)]


def test_leave_tells_of_news_once_the_outermost_call_ends(core, hook):
    watch = hook(core, nn.Sequential(Log(), nn.Identity()))
    watch.model(torch.ones(2))
    assert watch.attended == []
    watch.model(-torch.ones(2))
    assert watch.attended == [1]
    watch.rows()
    watch.model(torch.ones(2))
    assert watch.attended == [1]


def test_several_sessions_on_different_models(core, hook):
    first, second = (hook(core, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))) for _ in range(2))
    second.model(first.model(torch.ones(2, 3)))
    first.model(second.model(torch.ones(2, 3))).sum().backward()
    rows = [watch.rows() for watch in (first, second)]
    for found in rows:
        assert [row.seq for row in found] == list(range(1, len(found) + 1))
        assert [row.n for row in found if row.kind == "ENTER"] == [0, 1]
        assert [row.module for row in found if row.kind == "OUTPUT"] == ["0", "1", "0", "1"]
        assert sum(row.kind == "GRAD_OUTPUT" for row in found) == 2


def test_two_sessions_on_one_model_see_the_same(core, hook):
    # GIVEN a model and a part of it, each with a scanner of its own
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 1))
    alone = hook(core, copy.deepcopy(model))
    alone.model(torch.ones(2, 3)).sum().backward()
    outer, inner = hook(core, model), hook(core, model[0])
    model(torch.ones(2, 3)).sum().backward()
    # THEN the one does not make the other look twice
    assert [str(row) for row in outer.rows()] == [str(row) for row in alone.rows()]
    kinds = [(row.kind, row.module) for row in inner.rows()]
    assert kinds.count(("GRAD_OUTPUT", "1")) == 1
    assert kinds.count(("OUTPUT", "")) == 0


def test_threads_that_call_replicas(core, hook):
    # GIVEN eight replicas as DataParallel makes them: they share hooks and session
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Log()), nn.Linear(4, 2))
    watch = hook(core, model, capacity=1 << 14)
    replicas = [copy.copy(watch.model) for _ in range(8)]
    errors = []

    def work(replica):
        try:
            core.module.clear_thread_state()
            for _ in range(10):
                replica(torch.randn(3, 4)).sum().backward()
                assert core.module.module_depth() == 0
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=work, args=(replica,)) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # THEN no record is lost or torn, and every chain of links stays inside its own call of the root
    rows = watch.rows()
    assert watch.session.counters()["dropped"] == 0
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    enters = [row.call for row in rows if row.kind == "ENTER"]
    assert len(set(enters)) == 80
    assert sorted(row.n for row in rows if row.kind == "ENTER") == list(range(80))
    assert len(calls_of(rows, "0")) == 80
    links = parents(rows)
    assert links
    for call, parent in links.items():
        assert parent == 0 or parent < call
        assert (parent == 0) == (call in enters)
