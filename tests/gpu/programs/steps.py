"""What a training with a device does to the program around it: nothing waits, launches are few, verdicts come late."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from late import Late, answer, start
from torch import nn
from trainings import BAD_AT, BackwardInf, ForwardNan, Run

import nanscan
from nanscan.scanner import api


def nothing_waits(late: Late) -> Any:
    """50 steps in which no record is released: whoever waited for one would have let it go."""
    held: list[int] = []
    run = ForwardNan()
    run.start()
    core = run.scanner._core
    for step in range(50):
        run.at(step)
        run.optimizer.zero_grad()
        run.update(run.loss(run.net(run.batch(step)), step))
        held.append(core.pending)
    early = [str(event) for event in run.scanner.events]
    late.release()
    events = [event.step for event in run.scanner.events if event.severity == "error"]
    run.scanner.close()
    return {"held": held, "early": early, "error steps": events, "dropped": run.scanner.stats["dropped"]}


def full_ring(late: Late) -> Any:
    """A device that hands nothing over fills the ring; what finds no place is counted, and the rest goes on."""
    before, api.RING_CAPACITY = api.RING_CAPACITY, 1 << 9
    try:
        run = BackwardInf()
        run.start()
    finally:
        api.RING_CAPACITY = before
    core, most = run.scanner._core, 0
    losses = []
    for step in range(30):
        run.optimizer.zero_grad()
        loss = run.loss(run.net(run.batch(step)), step)
        run.update(loss)
        losses.append(loss.item())
        most = max(most, core.pending)
    dropped, launches = run.scanner.stats["dropped"], late.launches
    run.optimizer.zero_grad()
    run.update(run.loss(run.net(run.batch(0)), 0))
    launched_when_full = late.launches - launches
    late.release()
    run.scanner.poll()
    for step in (0, BAD_AT, 0):  # there is room again
        run.at(step)
        run.optimizer.zero_grad()
        run.update(run.loss(run.net(run.batch(step)), step))
        late.release()
    run.scanner.close()
    return {
        "most": most,
        "capacity": core.capacity,
        "dropped": dropped,
        "launched when full": launched_when_full,
        "marks": run.scanner._timeline.waiting,
        "finite": bool(torch.tensor(losses).isfinite().all()),
        "first": None if run.scanner.first is None else [run.scanner.first.step, run.scanner.first.module],
    }


def one_step(run: Run, step: int) -> None:
    run.at(step)
    run.optimizer.zero_grad()
    run.update(run.loss(run.net(run.batch(step)), step))


def raising(late: Late) -> Any:
    """The step in which the record arrives raises, at its first safe point, and not the one that went wrong."""
    run = ForwardNan(on_anomaly="raise")
    run.start()
    raised: list[Any] = []
    for step in range(6):
        if step == BAD_AT + 2:
            late.release()
        ran_forward = False
        try:
            run.at(step)
            run.optimizer.zero_grad()
            out = run.net(run.batch(step))
            ran_forward = True
            run.update(run.loss(out, step))
        except nanscan.NonFiniteError as err:
            raised.append([step, ran_forward, err.event.step, err.event.module])
            break
    run.scanner.close()
    return raised


def stopping(late: Late) -> Any:
    """The record arrives amid step 3, whose safe points are passed by; the boundary after it is not."""
    run = ForwardNan(on_anomaly="stop")
    run.start()
    passed: list[str] = []
    try:
        for step in range(6):
            run.at(step)
            run.optimizer.zero_grad()
            out = run.net(run.batch(step))
            passed.append(f"forward {step}")
            if step == BAD_AT + 1:
                late.release()
            run.update(run.loss(out, step))
            passed.append(f"step {step}")
    except nanscan.NonFiniteError as err:
        passed.append(f"stopped for {err.event.step}")
    run.scanner.close()
    return passed[-3:]


def calling(late: Late) -> Any:
    calls: list[Any] = []
    run = ForwardNan(on_anomaly=lambda event: calls.append([event.step, event.module]))
    run.start()
    for step in range(3):
        one_step(run, step)
    before = list(calls)
    late.release()
    run.scanner.poll()
    run.scanner.poll()
    once = list(calls)
    run.scanner.close()
    return {"before": before, "once": once[:1], "of first": [c for c in calls if c == once[0]] if once else []}


def warning(late: Late) -> Any:
    run = ForwardNan(on_anomaly="warn")
    run.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            one_step(run, step)
        n_before = len(caught)
        late.release()
        run.net.trap.bad = None
        run.scanner.poll()
    run.scanner.close()
    return [n_before, *(w.category.__name__ for w in caught)]


class Wrapped(nn.Module):
    """Three modules around one that makes a value; `work` hands it up, and a second reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
        self.read = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.make(x)
        self.read(h)
        return self.read(h)


def launches(late: Late) -> Any:
    net = Wrapped()
    scanner = nanscan.enable(net, on_anomaly="record", escalate=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    counts: dict[str, int] = {}

    def count(name: str, before: int) -> None:
        counts[name] = late.launches - before

    for _ in range(2):  # the second time everything is settled
        at = late.launches
        out = net(torch.randn(3, 4))
        count("forward", at)
        at = late.launches
        out.sum().backward()
        count("backward", at)
        at = late.launches
        optimizer.step()
        count("optimizer", at)
        at = late.launches
        optimizer.zero_grad(set_to_none=True)
        scanner.step()
        count("boundary", at)
        at = late.launches
        nanscan.check(out, "out")
        nanscan.check(out.new_zeros(0), "empty")
        count("check", at)
    with torch.no_grad():
        net.make[0][0].bias.add_(1.0)
    at = late.launches
    net(torch.randn(3, 4))
    count("forward after a write by hand", at)
    scanner.close()
    counts["parameters"] = len(list(net.parameters()))
    return counts


def launches_of_a_step(late: Late) -> dict[str, int]:
    """Numbers, from 1, of some launches of a step."""
    run = ForwardNan()
    run.start()
    one_step(run, 0)
    at = late.launches
    run.optimizer.zero_grad()
    loss = run.loss(run.net(run.batch(1)), 1)
    forward = late.launches - at
    loss.backward()
    gradients = late.launches - at
    run.optimizer.step()
    update = late.launches - at
    run.scanner.close()
    return {"forward": forward, "gradients": gradients, "update": update}


def lost(late: Late) -> Any:
    """One launch of step 2 fails, or that one and all after it. The last step goes bad."""
    said: dict[str, Any] = {}
    numbers = launches_of_a_step(late)
    for name, number in [*numbers.items(), ("for good", 5)]:
        run = ForwardNan()
        run.start()
        losses = []
        for step in range(5):
            if step == 2:
                (late.lose if name == "for good" else late.fail)(number)
            run.at(BAD_AT if step == 4 else 0)
            run.optimizer.zero_grad()
            loss = run.loss(run.net(run.batch(step)), step)
            run.update(loss)
            losses.append(loss.item())
            if step == 2:
                pending = run.scanner._core.pending
                run.scanner.poll()
                judged = run.scanner._timeline.waiting
        report = " ".join(run.scanner.report().split())
        run.scanner.close()
        late.fail(0)
        said[name] = {
            "finite": bool(torch.tensor(losses[:4]).isfinite().all()),
            "steps": run.scanner.stats["steps"],
            "pending": pending,
            "marks": judged,
            "unscanned": sum(run.scanner.coverage["unscanned"].values()),
            "notes": run.scanner.coverage["notes"],
            "in report": run.scanner.coverage["notes"] != [] and run.scanner.coverage["notes"][0] in report,
            "first": None if run.scanner.first is None else run.scanner.first.step,
            "failure": run.scanner.coverage["failure"],
        }
    return said


def main() -> None:
    late = start()
    assert late is not None
    answer({
        f.__name__: f(late)
        for f in (nothing_waits, full_ring, raising, stopping, calling, warning, launches, lost)
    })  # fmt: skip


if __name__ == "__main__":
    main()
