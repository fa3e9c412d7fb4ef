"""After os.fork() the child trains on without a scanner, and writes nothing into its parent's log."""

from __future__ import annotations

import json
import os
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

FORK = """
    import traceback

    def child(action):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                action()
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"the child ended with {status}"

    scanner = nanscan.enable(net, on_anomaly="raise", dir="log")
    step()
"""


@pytest.fixture
def run_forking(run_program):
    """run_forking(source): a program with an open scanner and child(action), which runs an action in a forked child."""
    return lambda source, **options: run_program(FORK + source, **options)


def kinds(folder):
    return {p.name: [json.loads(line)["kind"] for line in p.read_text().splitlines()] for p in folder.iterdir()}


def test_a_child_trains_on_and_is_inert(run_forking, tmp_path):
    done = run_forking("""
    def train():
        for _ in range(3):
            step(bad=True)
        nanscan.check(torch.tensor(float("nan")), "loss")
        scanner.step()
        print("child", scanner.stats["steps"], scanner.events)

    child(train)
    step()
    scanner.flush()
    print("parent", scanner.stats["steps"], scanner.events)
    scanner.close()
    """)
    assert done.stdout == "child 1 ()\nparent 2 ()\n"
    assert list(kinds(tmp_path / "log").values()) == [["start", "end"]]


def test_a_child_that_closes_ends_nobodys_log(run_forking, tmp_path):
    run_forking("""
    child(lambda: (scanner.close(), nanscan.disable()))
    child(nanscan.disable)
    step()
    assert not scanner.closed
    try:
        step(bad=True)
    except nanscan.NonFiniteError:
        pass
    scanner.close()
    """)
    assert list(kinds(tmp_path / "log").values()) == [["start", "event", "end"]]


def test_a_scanner_of_the_childs_own_works(run_forking):
    # GIVEN a child (a worker of multiprocessing with "fork") that enables a scanner for itself
    done = run_forking("""
    def own():
        nanscan.disable()
        other = nn.Sequential(nn.Linear(4, 4), Trap())
        with nanscan.enable(other, on_anomaly="record") as mine:
            other[1].bad = True
            with torch.no_grad():
                other(torch.ones(1, 4))
        print(mine.first, mine.stats["batches"])

    child(own)
    step()
    print(scanner.stats["batches"])
    """)
    assert "error: nan (origin) in forward, step 0: 1 (Trap)" in done.stdout
    assert done.stdout.splitlines()[-1] == "2"


def test_a_child_may_watch_the_parents_model_itself(run_forking):
    done = run_forking("""
    def own():
        with nanscan.enable(net, on_anomaly="record") as mine:
            step(bad=True)
        print(mine.first)

    child(own)
    """)
    assert "error: nan (origin) in forward, step 0: 1 (Trap)" in done.stdout


def test_a_child_of_a_program_whose_scanner_is_closed(run_forking):
    # GIVEN a parent that has long closed its scanner
    done = run_forking("""
    scanner.close()

    def own():
        with nanscan.enable(net, on_anomaly="record") as mine:
            step(bad=True)
        print(mine.first)

    child(own)
    """)
    assert "error: nan (origin) in forward, step 0: 1 (Trap)" in done.stdout


def test_fork_while_another_thread_is_inside_the_scanner(run_forking):
    done = run_forking(
        """
    import threading

    stop = threading.Event()

    def serve():
        while not stop.is_set():
            scanner.poll()
            scanner.events

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(10):
        child(lambda: (step(), scanner.poll(), nanscan.disable()))
    stop.set()
    thread.join()
    print("done")
    """,
        timeout=100,
    )
    assert done.stdout == "done\n"


def test_data_loader_workers(run_forking):
    done = run_forking("""
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.ones(4) * i

    for batch in DataLoader(Data(), batch_size=2, num_workers=2):
        net(batch).sum().backward()
        optimizer.step()
    print(scanner.stats["steps"], scanner.events)
    """)
    assert done.stdout == "5 ()\n"


@pytest.mark.skipif(sys.platform != "linux", reason="spawn is what the others do anyway")
def test_a_spawned_child_carries_no_hook(run_program):
    # GIVEN a hooked model that is pickled to a process of its own
    done = run_program("""
    import torch.multiprocessing as mp

    def work(model, queue):
        queue.put([len(m._forward_hooks) for m in model.modules()] and float(model(torch.ones(1, 4)).sum()))

    if __name__ == "__main__":
        model = nn.Sequential(nn.Linear(4, 2))
        scanner = nanscan.enable(model, on_anomaly="record")
        context = mp.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=work, args=(model, queue))
        process.start()
        print(type(queue.get(timeout=60)).__name__)
        process.join()
        print(scanner.stats["batches"])
    """)
    assert done.stdout == "float\n0\n"
