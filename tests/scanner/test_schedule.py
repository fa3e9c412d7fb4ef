"""`every` and `schedule`: which steps are scanned, shown by counting records and scans."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerAction
from torch.profiler import schedule as profiler_schedule

import nanscan


def scanned_steps(scanner, training, steps):
    """Which of the next steps had scans."""
    found = []
    for step in range(steps):
        before = scanner.stats["scans"]
        training.step()
        if scanner.stats["scans"] > before:
            found.append(step)
    return found


def test_every_step_by_default(training):
    scanner = nanscan.enable(training.net)
    assert scanned_steps(scanner, training, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("every", [2, 3])
def test_every(training, every):
    scanner = nanscan.enable(training.net, every=every)
    assert scanned_steps(scanner, training, 7) == [i for i in range(7) if i % every == 0]


def test_a_schedule_that_answers_bool(training):
    asked = []

    def schedule(step):
        asked.append(step)
        return step in (1, 4)

    scanner = nanscan.enable(training.net, schedule=schedule)
    assert scanned_steps(scanner, training, 6) == [1, 4]
    assert asked == [0, 1, 2, 3, 4, 5], "once per step"


def test_every_and_schedule_must_agree(training):
    scanner = nanscan.enable(training.net, every=2, schedule=lambda step: step >= 3)
    assert scanned_steps(scanner, training, 8) == [4, 6]


def test_torch_profilers_schedule(training):
    plan = profiler_schedule(wait=1, warmup=1, active=2, repeat=2)
    scanner = nanscan.enable(training.net, schedule=plan)
    wanted = [i for i in range(10) if plan(i) in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)]
    assert wanted == [2, 3, 6, 7]
    assert scanned_steps(scanner, training, 10) == wanted


def test_a_schedule_may_name_the_level(training):
    scanner = nanscan.enable(training.net, schedule=lambda step: "module" if step == 2 else False)
    assert scanned_steps(scanner, training, 4) == [2]


class ScheduleError(Exception):
    pass


def test_what_a_schedule_raises_comes_out(training):
    def schedule(step):
        if step == 2:
            raise ScheduleError(step)
        return True

    scanner = nanscan.enable(training.net, schedule=schedule)
    training.run(2)
    with pytest.raises(ScheduleError):
        training.step()
    assert scanner.coverage["failure"] is None


def test_idle_steps_are_not_scanned_and_still_counted(make_training, make_net):
    # GIVEN a scanner that looks at step 0 only
    training = make_training(make_net(), lr=0.0)
    scanner = nanscan.enable(training.net, on_anomaly="record", schedule=lambda step: step == 0)
    training.step()
    scanner.flush()
    before = scanner.stats
    training.run(5, at={2: "forward", 4: "backward"})
    after = scanner.stats
    assert after["steps"] == 6
    assert after["scans"] == before["scans"]
    assert after["records"] == before["records"]
    assert scanner.events == ()


def test_batches_are_counted_on_idle_steps_too(make_training, make_net):
    training = make_training(make_net(), lr=0.0)
    scanner = nanscan.enable(training.net, on_anomaly="record", every=3)
    training.run(8, at={6: "forward"})
    assert scanner.stats["batches"] == 8
    assert [(e.step, e.batch) for e in scanner.events] == [(6, 6)]


def test_what_happened_on_an_idle_step_is_found_on_the_next_scanned_one(training):
    # GIVEN a NaN of step 1, which no one saw, that is in every parameter since
    scanner = nanscan.enable(training.net, on_anomaly="record", every=2)
    training.run(3, at={1: "forward"})
    scanner.close()
    assert scanner.first.step == 2
    assert scanner.first.role == "external"
    assert scanner.first.tensor in dict(training.net.named_parameters())


def test_a_check_on_an_idle_step_is_not_scanned(training):
    scanner = nanscan.enable(training.net, on_anomaly="raise", every=2)
    for step in range(4):
        training.step()
        nanscan.check(torch.tensor(float("nan") if step == 1 else 1.0), "loss")
    assert scanner.first is None


def test_inference_steps_follow_the_schedule(make_net):
    net = make_net()
    scanner = nanscan.enable(net, every=4)
    counts = []
    with torch.no_grad():
        for _ in range(9):
            before = scanner.stats["scans"]
            net(torch.ones(1, 4))
            counts.append(scanner.stats["scans"] > before)
    assert [i for i, scanned in enumerate(counts) if scanned] == [0, 4, 8]
