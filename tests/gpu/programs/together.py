"""Several scanners, several threads, and a forked child, with one device behind all of them."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from late import Late, answer, start
from torch import nn
from trainings import BAD_AT, BackwardInf, ForwardNan, Run

import nanscan


def steps_of(run: Run, numbers: list[int]) -> None:
    for step in numbers:
        run.at(step)
        run.optimizer.zero_grad()
        run.update(run.loss(run.net(run.batch(step)), step))


def first_of(scanner: nanscan.Scanner) -> list[Any] | None:
    event = scanner.first
    return None if event is None else [event.phase, event.step, event.module]


def two_scanners(late: Late) -> Any:
    """Of two models that train in turns; each has its own verdict and its own order."""
    one, two = ForwardNan(), BackwardInf()
    one.start()
    two.start()
    for step in range(4):
        steps_of(one, [step])
        late.release(9, step)
        steps_of(two, [step + 1])  # bad one step earlier
    one.scanner.close()
    late.release()
    two.scanner.close()
    return {
        "one": first_of(one.scanner),
        "two": first_of(two.scanner),
        "dropped": one.scanner.stats["dropped"] + two.scanner.stats["dropped"],
    }


def threads(late: Late) -> Any:
    """Four threads run one model at once, each on a stream of its own, while a fifth lets records go."""
    run = Run(clock="manual")
    run.start()
    bad = torch.full((3, 4), float("nan"))
    stop, faults = threading.Event(), []

    def serve(number: int) -> None:
        try:
            late.stream(0x100 + number)
            generator = torch.Generator().manual_seed(number)
            for i in range(40):
                x = bad if (number, i) == (2, 30) else torch.randn(3, 4, generator=generator)
                run.net(x).sum().backward()
        except BaseException as err:
            faults.append(repr(err))

    def let_go() -> None:
        seed = 0
        while not stop.is_set():
            seed += 1
            late.release(17, seed)
            run.scanner.poll()

    workers = [threading.Thread(target=serve, args=(i,)) for i in range(4)]
    releaser = threading.Thread(target=let_go)
    for thread in (*workers, releaser):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    releaser.join()
    run.scanner.close()
    return {
        "faults": faults,
        "batches": run.scanner.stats["batches"],
        "dropped": run.scanner.stats["dropped"],
        "pending": run.scanner._core.pending,
        "failure": run.scanner.coverage["failure"],
        "first": first_of(run.scanner),
    }


def fork(late: Late) -> Any:
    """The child trains on, launches nothing and waits for nothing; the parent's records are all still there."""
    run = ForwardNan(on_anomaly="raise")
    run.start()
    steps_of(run, [0, 1])
    pending = run.scanner._core.pending
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        at = late.launches
        steps_of(run, [BAD_AT, 3])
        nanscan.disable()
        os.write(writer, f"{late.launches - at} {len(run.scanner.events)}".encode())
        run.scanner, run.net = None, None  # the last of the session goes here
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    child = os.read(reader, 100).decode()
    after = run.scanner._core.pending
    steps_of(run, [3])
    run.scanner.close()
    return {"status": status, "child": child, "pending": [pending, after], "first": first_of(run.scanner)}


def without_a_model(late: Late) -> Any:
    """enable(None) watches a model from its first call on; the device is opened then."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with nanscan.enable(None, on_anomaly="record", escalate=False) as scanner:
        net(torch.ones(1, 4))
        late.release()
        net(torch.full((1, 4), float("inf")))
    return first_of(scanner)


def main() -> None:
    late = start()
    assert late is not None
    answer({f.__name__: f(late) for f in (two_scanners, threads, fork, without_a_model)})


if __name__ == "__main__":
    main()
