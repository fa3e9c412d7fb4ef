"""on_anomaly="warn", the default: told once per site, then at powers of ten, at the user's own line; nothing raised."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import nanscan


def collect(action):
    """The warnings that `action` makes, whatever the filters of the test run are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [w for w in caught if w.category is not DeprecationWarning]


def test_is_the_default_and_names_the_place(training):
    scanner = nanscan.enable(training.net)
    caught = collect(lambda: training.run(4, at={2: "forward"}))
    assert [w.category for w in caught] == [nanscan.NonFiniteWarning]
    text = str(caught[0].message)
    for words in (
        "error: nan (origin) in forward, step 2: trap (Trap)",
        "24 of 24 elements",
        "print(scanner.report())",
    ):
        assert words in text
    assert scanner.first.module == "trap"


def test_a_healthy_run_is_silent(training):
    nanscan.enable(training.net)
    assert collect(lambda: training.run(5)) == []


def test_points_at_the_users_line(make_net):
    net = make_net()
    net.trap.bad = "forward"
    nanscan.enable(net)

    def user():
        return net(torch.ones(1, 4))

    (warning,) = collect(user)
    lines, first = inspect.getsourcelines(user)
    assert warning.filename == __file__
    assert first <= warning.lineno < first + len(lines)


def test_a_bad_gradient_points_at_the_users_line_too(training):
    nanscan.enable(training.net)
    caught = collect(lambda: training.run(1, at={0: "backward"}))
    assert [w.category for w in caught] == [nanscan.NonFiniteWarning]
    assert caught[0].filename.endswith("conftest.py")  # training.step() is the user here
    assert "in backward, step 0: trap (Trap)" in str(caught[0].message)


def test_repeats_at_powers_of_ten(make_net):
    # GIVEN bad data in each of 120 steps
    net = make_net()
    scanner = nanscan.enable(net)

    def serve():
        with torch.no_grad():
            for _ in range(120):
                net(torch.full((1, 4), float("nan")))

    # THEN the warnings come at the 1st, 10th and 100th
    texts = [str(w.message) for w in collect(serve)]
    assert len(texts) == 3
    assert "times so far" not in texts[0]
    assert "(10 times so far at this site)" in texts[1]
    assert "(100 times so far at this site)" in texts[2]
    assert scanner.stats["errors"] == 120


def test_each_site_has_its_own_count(make_net):
    net = make_net()
    nanscan.enable(net)

    def serve():
        for bad in (net.a, net.b):
            with torch.no_grad():
                kept = bad.weight.clone()
                bad.weight.fill_(float("inf"))
                net(torch.ones(1, 4))
                bad.weight.copy_(kept)
                net(torch.ones(1, 4))

    texts = [str(w.message) for w in collect(serve)]
    assert len(texts) == 2
    assert "a.weight" in texts[0]
    assert "b.weight" in texts[1]


def test_repeats_are_told_even_where_python_shows_a_line_once(make_net):
    # GIVEN Python's default filter, which shows one text per line once
    net = make_net()
    nanscan.enable(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with torch.no_grad():
            for _ in range(10):
                net(torch.full((1, 4), float("nan")))
    assert len(caught) == 2


def test_warnings_as_errors_come_out_as_warnings(training):
    # GIVEN python -W error, or pytest with filterwarnings = error
    scanner = nanscan.enable(training.net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # THEN the user gets what they asked for, and the scanner goes on
        with pytest.raises(nanscan.NonFiniteWarning, match="trap"):
            training.step("forward")
    assert scanner.coverage["failure"] is None
    assert not scanner.closed
    assert scanner.first.module == "trap"


def test_ignored_warnings_are_still_events(training):
    scanner = nanscan.enable(training.net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.run(2, at={1: "forward"})
    assert scanner.first.step == 1


def test_an_explosion_is_a_warning_of_the_same_kind():
    # GIVEN a training whose learning rate is too high: finite for many steps, then not
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scanner = nanscan.enable(model)
    x, y = torch.randn(64, 8).double(), torch.randn(64, 1).double()

    def train():
        for _ in range(60):
            optimizer.zero_grad()
            (model(x) * 4 - y).square().mean().backward()
            optimizer.step()

    caught = collect(train)
    kinds = [event.kind for event in scanner.events if event.severity == "warning"]
    assert "explosion" in kinds
    assert any("explosion" in str(w.message) for w in caught)
    assert scanner.events[0].kind == "explosion"
