"""However long the run: memory, log and time per step stay bounded."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import nanscan

pytestmark = pytest.mark.slow

MIB = 1 << 20


def resident():
    """Bytes of memory that the process holds now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(autouse=True)
def needs_proc():
    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is read from /proc")


class Tiny(nn.Module):
    """Two layers, so that there is something between the data and the root's output."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.b(self.a(x))


def growth_over(steps, warm_up, one_step):
    """How much the resident memory grows after the warm-up."""
    for i in range(warm_up):
        one_step(i)
    before = resident()
    for i in range(warm_up, steps):
        one_step(i)
    return resident() - before


ANOMALIES = [
    pytest.param("bad data", 100_000, id="data-100_000"),  # about 100 s of one core, of which the scanner has 4 / 5
    pytest.param("bad gradient", 8_000, id="gradient-8_000"),
    pytest.param("bad check", 8_000, id="check-8_000"),
]


@pytest.mark.parametrize(("kind", "steps"), ANOMALIES)
def test_an_anomaly_on_each_step(kind, steps, tmp_path, record_property):
    torch.manual_seed(0)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scanner = nanscan.enable(model, on_anomaly="record", dir=tmp_path)
    good, bad = torch.ones(2, 2), torch.tensor([[1.0, float("nan")], [1.0, 1.0]])
    sign = torch.tensor(-1.0)

    def step(i):
        optimizer.zero_grad()
        out = model(bad if kind == "bad data" else good)
        if kind == "bad gradient":
            loss = (out * 0 + sign).sqrt().sum()
        elif kind == "bad check":
            loss = out.sum()
            nanscan.check(loss.detach() * float("nan"), "loss")
        else:
            loss = out.sum()
        loss.backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()

    began = time.perf_counter()
    grown = growth_over(steps, 5_000, step)
    record_property("microseconds per step", round((time.perf_counter() - began) * 1e6 / steps))
    scanner.close()
    assert scanner.coverage["failure"] is None
    assert scanner.stats["errors"] == steps
    assert scanner.stats["dropped"] == 0
    assert len(scanner.events) <= 1000
    assert grown < 20 * MIB, f"{grown / MIB:.1f} MiB"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < MIB


def test_poisoned_parameters_for_10_000_steps(tmp_path):
    # GIVEN a NaN that the first update wrote into every parameter, and nobody who looks
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scanner = nanscan.enable(model, on_anomaly="record", dir=tmp_path)

    def step(i):
        optimizer.zero_grad()
        model(torch.full((2, 2), float("nan") if i == 0 else 1.0)).sum().backward()
        optimizer.step()

    grown = growth_over(10_000, 2_000, step)
    assert scanner.stats["errors"] == 1
    assert scanner.stats["repeats"] >= 9_900
    assert grown < 20 * MIB, f"{grown / MIB:.1f} MiB"


STEPLESS = ["no_grad, clock=manual", "grad enabled, no backward", "backward, no optimizer"]


@pytest.mark.parametrize("kind", STEPLESS)
def test_100_000_forwards_of_a_step_that_never_ends(kind):
    # GIVEN a server, or an update by hand: healthy, and no step is ever over
    model = Tiny()
    scanner = nanscan.enable(model, on_anomaly="record", clock="manual" if "manual" in kind else "auto")
    x = torch.ones(2, 2)

    def step(i):
        if "no_grad" in kind:
            with torch.no_grad():
                model(x)
        else:
            loss = model(x).sum()
            if "backward," in kind:
                loss.backward()

    grown = growth_over(100_000, 20_000, step)
    assert scanner.stats["dropped"] == 0
    assert scanner.coverage["failure"] is None
    assert grown < 20 * MIB, f"{grown / MIB:.1f} MiB"


@pytest.mark.parametrize("clock", ["manual", "auto"])
def test_bad_forwards_of_a_step_that_never_ends(clock):
    # GIVEN a server that is sent bad data for ever; clock="auto" and no no_grad(): nothing says that a step is over
    model = Tiny()
    scanner = nanscan.enable(model, on_anomaly="record", clock=clock)
    bad = torch.full((2, 2), float("nan"))
    times = []

    def step(i):
        began = time.process_time()
        model(bad)
        times.append(time.process_time() - began)

    grown = growth_over(4_000, 1_000, step)
    assert scanner.stats["dropped"] == 0
    early, late = sorted(times[500:1000])[250], sorted(times[-500:])[250]
    assert late < 2 * early, f"a call takes {1e6 * early:.0f} us at first and {1e6 * late:.0f} us in the end"
    assert grown < 4 * MIB, f"{grown / MIB:.1f} MiB in 3000 calls"


def test_many_short_lived_scanners():
    model = Tiny()

    def step(i):
        with nanscan.enable(model, on_anomaly="record"):
            model(torch.ones(2, 2)).sum().backward()

    for i in range(100):
        step(i)
    gc.collect()
    objects = len(gc.get_objects())
    # A ring is 4 MiB; the allocator keeps some of them for later.
    assert growth_over(1_000, 100, step) < 256 * MIB  # of a leak it would be 4 GiB
    assert len(gc.get_objects()) - objects < 100


# ---- op level


def op_level_step(model, optimizer, bad):
    def step(i):
        optimizer.zero_grad()
        out = model(torch.ones(2, 2))
        if bad:
            out = out + torch.log(-torch.ones(1))
        out.sum().backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()

    return step


@pytest.mark.parametrize("bad", [False, True], ids=["healthy", "an-anomaly-on-each"])
def test_10_000_steps_at_op_level(bad):
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scanner = nanscan.enable(model, level="op", on_anomaly="record")
    grown = growth_over(10_000, 3_000, op_level_step(model, optimizer, bad))
    assert scanner.coverage["failure"] is None
    assert scanner.stats["errors"] == (10_000 if bad else 0)
    assert scanner.stats["dropped"] == 0
    assert scanner._core.n_storages() < 10_000, "storages of tensors that are gone"
    assert grown < 12 * MIB, f"{grown / MIB:.1f} MiB"


def test_bad_forwards_of_a_step_that_never_ends_at_op_level():
    model = Tiny()
    scanner = nanscan.enable(model, level="op", on_anomaly="record", clock="manual")

    def step(i):
        with torch.no_grad():
            model(torch.log(-torch.ones(2, 2)))

    grown = growth_over(10_000, 3_000, step)
    assert scanner.stats["errors"] == 10_000
    assert scanner.coverage["failure"] is None
    assert grown < 12 * MIB, f"{grown / MIB:.1f} MiB"
