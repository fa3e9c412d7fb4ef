"""One scanner, many threads: nothing crashes, nothing is lost, each thread has its own module stack."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import nanscan

THREADS, CALLS = 8, 40


def in_threads(work, n=THREADS):
    """Run work(i) in n threads that start together; what one raises comes out."""
    barrier, errors = threading.Barrier(n), []

    def run(i):
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_one_model_called_by_eight_threads(make_net):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record", clock="manual")
    before = scanner.stats["records"]

    def work(i):
        with torch.no_grad():
            for _ in range(CALLS):
                net(torch.randn(3, 4))

    in_threads(work)
    stats = scanner.stats
    # a root call writes: its begin, its input, and the outputs of a, trap, b (the root returns b's)
    assert stats["records"] - before == THREADS * CALLS * 5
    assert stats["batches"] == THREADS * CALLS
    assert stats["dropped"] == 0
    assert scanner.first is None


def test_training_in_threads_as_data_parallel_does(make_net):
    # GIVEN replicas that share a scanner: forward in a thread each, one backward for all
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scanner = nanscan.enable(net, on_anomaly="record")
    for _ in range(5):
        outputs = [None] * THREADS

        def work(i, outputs=outputs):
            with torch.enable_grad():
                outputs[i] = net(torch.randn(3, 4))

        in_threads(work)
        optimizer.zero_grad()
        torch.stack(outputs).sum().backward()
        optimizer.step()
    assert scanner.stats["steps"] == 5
    assert scanner.stats["batches"] == 5 * THREADS
    assert scanner.first is None
    assert scanner.coverage["failure"] is None


@pytest.mark.parametrize("bad", ["forward", "backward"])
def test_an_anomaly_in_one_thread_is_named(make_net, bad):
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record", clock="manual")
    plain = net.trap.forward

    def trap(x):
        net.trap.bad = bad if threading.current_thread().name == "bad" else None
        return plain(x)

    def work(i):
        threading.current_thread().name = "bad" if i == 3 else f"good {i}"
        for _ in range(CALLS):
            with lock:  # the trap's switch is one for all
                loss = net(torch.randn(3, 4)).sum()
            with lock:
                loss.backward()

    lock = threading.Lock()
    net.trap.forward = trap
    in_threads(work)
    scanner.step()
    scanner.close()
    errors = [e for e in scanner.events if e.severity == "error"]
    assert errors
    assert {e.module for e in errors} == {"trap"}
    assert {e.phase for e in errors} == {bad}
    assert scanner.coverage["failure"] is None


def test_the_module_stack_is_one_per_thread(make_net):
    # GIVEN a thread that is inside a module while another one calls check() outside of all
    net = make_net()
    inside, done = threading.Event(), threading.Event()

    def wait(x):
        inside.set()
        assert done.wait(30)
        nanscan.check(torch.tensor(float("nan")), "inside")
        return x * 1.0

    net.trap.forward = wait
    scanner = nanscan.enable(net, on_anomaly="record", clock="manual")
    thread = threading.Thread(target=lambda: net(torch.ones(1, 4)))
    thread.start()
    assert inside.wait(30)
    nanscan.check(torch.tensor(float("inf")), "outside")
    done.set()
    thread.join(30)
    scanner.step()
    scanner.close()
    where = {e.tensor: e.module for e in scanner.events}
    assert where.get("outside", "missing") is None
    assert scanner.first.tensor == "outside"


def test_raise_reaches_the_thread_that_went_wrong(make_net):
    net = make_net()
    nanscan.enable(net, on_anomaly="raise", clock="manual")
    raised = []

    def work(i):
        x = torch.full((1, 4), float("nan") if i == 2 else 1.0)
        try:
            with torch.no_grad():
                net(x)
        except nanscan.NonFiniteError as error:
            raised.append((i, error))

    in_threads(work, n=4)
    assert len(raised) == 1
    assert raised[0][1].event.role == "external"


def test_enable_and_close_while_others_run(make_net):
    net, stop = make_net(), threading.Event()

    def work(i):
        if i == 0:
            try:
                for _ in range(20):
                    with nanscan.enable(net, on_anomaly="record") as scanner:
                        net(torch.ones(1, 4)).sum().backward()
                    assert scanner.coverage["failure"] is None
            finally:
                stop.set()
        else:
            while not stop.is_set():
                with torch.no_grad():
                    net(torch.ones(1, 4))

    in_threads(work, n=4)


def test_two_scanners_in_two_threads(make_training, make_net):
    scanners = {}

    def work(i):
        training = make_training(make_net())
        scanners[i] = nanscan.enable(training.net, on_anomaly="record")
        training.run(10, at={i + 2: "forward"})

    in_threads(work, n=4)
    for i, scanner in scanners.items():
        assert (scanner.stats["steps"], scanner.first.step, scanner.first.module) == (10, i + 2, "trap")


def test_a_loader_thread_that_computes(training):
    # GIVEN a background thread whose own model is none of ours
    stop = threading.Event()
    other = nn.Linear(4, 4)

    def load():
        while not stop.is_set():
            other(torch.full((2, 4), float("nan"))).sum().backward()

    thread = threading.Thread(target=load)
    thread.start()
    try:
        scanner = nanscan.enable(training.net, on_anomaly="raise")
        training.run(20)
    finally:
        stop.set()
        thread.join(30)
    assert scanner.stats["batches"] == 20
