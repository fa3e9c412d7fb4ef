"""On a CUDA device: what the stand-in, the PTX interpreter and the fibers cannot show. benchmarks/gpu_check.sh runs it.

The values have been compared before, without a GPU; here it is the compiled kernels, streams, graphs and the driver.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nanscan
from nanscan import backends
from nanscan.backends import device as devices
from nanscan.record import RECORD_DTYPE, Flag, Phase

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda() -> None:
    """In a fixture, so that pytest says it in one line for all."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: torch.cuda.is_available() is False")


WHERE = "cuda"
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]
# Views of [n] values, n divisible by 240.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "one element in": lambda x: x[1:],  # a head and a tail around the 16-byte loads
    "transposed": lambda x: x.view(-1, 240).t(),
    "channels last": lambda x: x.view(2, -1, 4, 10).permute(0, 3, 1, 2),
    "strided": lambda x: x.view(-1, 240)[::3, 1::2],
    "expanded": lambda x: x.view(-1, 240)[:, :1].expand(-1, 7),
    "one value": lambda x: x[7],
    "empty": lambda x: x[:0],
}


def _load(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[1] / name
    spec = importlib.util.spec_from_file_location(f"nanscan_{path.parent.name}_on_gpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_scan_tests = _load("scan/conftest.py")
make = _scan_tests.make  # the fixture: tensors with planted specials


@pytest.fixture(scope="module")
def core() -> Any:
    """The core, with the CUDA library in it: here its absence is a failure."""
    core = backends.get().core
    assert core is not None, backends.get().why
    assert devices.load(core) == ""
    return core


@pytest.fixture
def session(core: Any) -> Iterator[Any]:
    session = core.Session(1024)
    assert session.open_device(0), session.device_error
    yield session
    session.close()


@pytest.fixture(autouse=True)
def none_left_open() -> Iterator[None]:
    yield
    nanscan.disable()


def drained(session: Any) -> np.ndarray:
    session.flush_device()
    return np.frombuffer(session.drain(), RECORD_DTYPE)


def tolerance(dtype: torch.dtype) -> float:
    return 1e-11 if dtype.to_real() == torch.float64 else 1e-6


# ---- numbers


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_the_numbers_are_those_of_the_oracle(core: Any, make: Any, dtype: torch.dtype, layout: str) -> None:
    for n, fraction in ((240, 0.4), (240 * 137, 0.001), (240 * 4001, 0.0)):
        flat = make(dtype, n, seed=n, fraction=fraction, ends=False)
        here, there = LAYOUTS[layout](flat), LAYOUTS[layout](flat.to(WHERE))
        mismatch = _scan_tests.first_mismatch(here, backends.get().scan_record(there), tolerance(dtype))
        assert mismatch is None, mismatch


def test_shifted_data_keeps_its_deviation(core: Any, make: Any) -> None:
    flat = make(torch.float32, 1 << 20, mean=1e4)
    assert _scan_tests.first_mismatch(flat, backends.get().scan_record(flat.to(WHERE)), 1e-6) is None


def test_lazy_bits_are_applied(core: Any, make: Any) -> None:
    flat = make(torch.complex64, 4000, fraction=0.1, ends=False)
    for view in (lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.conj().t()):
        mismatch = _scan_tests.first_mismatch(view(flat), backends.get().scan_record(view(flat.to(WHERE))), 1e-6)
        assert mismatch is None, mismatch


def test_more_than_two_billion_elements(core: Any) -> None:
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GiB of free device memory")
    n = (1 << 31) + 1000
    x = torch.ones(n, dtype=torch.float8_e5m2, device=WHERE)
    x.view(torch.uint8)[n - 3] = 0x7F  # NaN
    stats = nanscan.scan(x)
    assert (stats.numel, stats.nan, stats.first_bad_index, stats.mean, stats.std) == (n, 1, n - 3, 1.0, 0.0)


def test_scan_is_the_same_bits_each_time(core: Any, make: Any) -> None:
    x = make(torch.bfloat16, 1 << 22, fraction=0.01, ends=False).to(WHERE)
    first = backends.get().scan_record(x)
    for _ in range(20):
        again = backends.get().scan_record(x)
        assert [again[name] for name in ("mean", "m2", "n_nan")] == [first[name] for name in ("mean", "m2", "n_nan")]


def test_triton_has_the_same_numbers(core: Any, make: Any) -> None:
    launch = pytest.importorskip("nanscan.triton_kernels.launch", reason="Triton, or our kernels for it, are not there")
    for dtype in DTYPES:
        for n, fraction in ((240 * 137, 0.4), (240 * 4001, 0.0)):
            flat = make(dtype, n, fraction=fraction, ends=False)
            for layout in ("contiguous", "one element in", "transposed"):
                here, there = LAYOUTS[layout](flat), LAYOUTS[layout](flat.to(WHERE))
                record = np.frombuffer(launch.scan_record(there), RECORD_DTYPE)
                wide = dtype.to_real() == torch.float64
                mismatch = _scan_tests.first_mismatch(here, record, 1e-11 if wide else 5e-6)
                assert mismatch is None, mismatch


def test_triton_by_name(core: Any) -> None:
    pytest.importorskip("nanscan.triton_kernels.launch", reason="Triton, or our kernels for it, are not there")
    program = f"import nanscan, torch; print(nanscan.scan(torch.full((5,), float('inf'), device={WHERE!r})).posinf)"
    environment = os.environ | {"NANSCAN_BACKEND": "triton"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "5\n", done.stderr


def test_plain_pytorch_has_the_same_numbers(make: Any) -> None:
    from nanscan.backends import eager

    for dtype in DTYPES:
        flat = make(dtype, 240 * 137, fraction=0.1, ends=False)
        mismatch = _scan_tests.first_mismatch(flat, eager.scan_record(flat.to(WHERE)), 1e-11)
        assert mismatch is None, mismatch


# ---- verdicts


class Divides(torch.autograd.Function):
    """Forward is finite, backward divides by zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / torch.zeros_like(grad)


class Apply(nn.Module):
    """Calls a function, from step 2 on."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.calls = function, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.function(x) if self.calls > 2 else x


MISTAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log of a negative": lambda x: (x - 10).log(),
    "overflow": lambda x: (x * 0 + 1e3).exp(),
    "backward divides": Divides.apply,
    "times NaN": lambda x: x * float("nan"),
    "healthy": lambda x: x,
}


def train(mistake: str, where: str, on_anomaly: Any = "record", bad: str = "") -> tuple[Any, list[torch.Tensor]]:
    """Four steps of a small model; (its closed scanner, or None for on_anomaly=None, and its losses)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Apply(MISTAKES[mistake]), nn.Linear(8, 1)).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 16, 8)
    if bad == "input":
        batches[2, 3, 3] = float("inf")
    batches = batches.to(where)
    scanner = None if on_anomaly is None else nanscan.enable(model, on_anomaly=on_anomaly, escalate=False)
    losses = []
    for step in range(4):
        if bad == "parameter" and step == 2:
            with torch.no_grad():
                model[2].weight[0, 0] = float("nan")
        loss = model(batches[step]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.detach(), *(p.detach().clone() for p in model.parameters())]
        if on_anomaly == "raise":
            torch.cuda.synchronize()  # the verdict is as late as the device is
    if scanner is not None:
        scanner.close()
    return scanner, losses


@pytest.mark.parametrize(
    ("mistake", "bad"), [*((m, "") for m in MISTAKES), ("healthy", "input"), ("healthy", "parameter")]
)
def test_the_verdict_is_that_of_the_cpu(core: Any, mistake: str, bad: str) -> None:
    told = []
    for where in ("cpu", WHERE):
        scanner, _ = train(mistake, where, bad=bad)
        told.append([(e.severity, e.kind, e.role, e.module, e.phase, e.step, e.tensor) for e in scanner.events])
        assert scanner.coverage["unscanned"] == {}
    assert told[0] == told[1]
    assert (told[0] == []) == (mistake == "healthy" and not bad)


def test_watching_changes_no_bit(core: Any) -> None:
    (_, plain), (_, watched) = train("healthy", WHERE, None), train("healthy", WHERE)
    for a, b in zip(plain, watched, strict=True):
        assert torch.equal(a, b)


def test_raise_comes_out_of_the_training_loop(core: Any) -> None:
    with pytest.raises(nanscan.NonFiniteError) as caught:
        train("log of a negative", WHERE, "raise")
    assert (caught.value.event.module, caught.value.event.step) == ("1", 2)


def test_two_scanners_keep_their_own(core: Any) -> None:
    good = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(WHERE)
    bad = nn.Sequential(nn.Linear(4, 4), Apply(torch.log)).to(WHERE)
    bad[1].calls = 9
    first, second = nanscan.enable(good, on_anomaly="record"), nanscan.enable(bad, on_anomaly="record")
    x = -torch.ones(3, 4, device=WHERE)
    for _ in range(5):
        good(x).sum().backward()
        bad(x).sum().backward()
    first.flush(), second.flush()
    first.close(), second.close()
    assert first.first is None
    assert second.first.module == "1"


# ---- what a hook must not do


def test_nothing_waits_in_a_step(core: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1)).to(WHERE)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(32, 64, device=WHERE)
    with nanscan.enable(model, on_anomaly="record") as scanner:
        for step in range(4):
            torch.cuda.set_sync_debug_mode("error" if step else "default")
            try:
                loss = nanscan.check(model(x).square().mean(), "loss")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        scanner.flush()
        assert scanner.coverage["unscanned"] == {}
        assert scanner.first is None


def test_a_record_is_about_the_memory_as_it_was(core: Any, session: Any) -> None:
    # GIVEN tensors freed right after their scan was launched, whose memory the next one gets
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # so that all of it is still to come
    for i in range(200):
        x = torch.full((1 << 18,), float(i), device=WHERE)
        assert session.scan_at(x, i, int(Phase.FORWARD))
        del x
        torch.full((1 << 18,), float("nan"), device=WHERE)
    records = drained(session)
    # THEN each has the numbers of its own
    assert records["site"].tolist() == list(range(200))
    assert records["max"].tolist() == [float(i) for i in range(200)]
    assert records["n_nan"].sum() == 0


def test_a_scan_runs_on_the_stream_of_its_tensor(core: Any, session: Any) -> None:
    x, y = torch.zeros(1 << 20, device=WHERE), torch.zeros(1 << 20, device=WHERE)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(float("nan"))  # a scan on any other stream would read zeros
        assert session.scan_at(x, 1, int(Phase.FORWARD))
    assert session.scan_at(y, 2, int(Phase.FORWARD))
    records = drained(session)
    assert records["site"].tolist() == [1, 2]  # the program's order, though the second was done first
    assert records["n_nan"].tolist() == [1 << 20, 0]


def test_polling_does_not_wait(core: Any, session: Any) -> None:
    x = torch.zeros(64, device=WHERE)
    session.scan_at(x, 0, 0)
    drained(session)
    torch.cuda._sleep(200_000_000)  # 0.1 s
    session.scan_at(x, 1, 0)
    session.poll_device()
    assert session.pending == 1
    assert len(session.drain()) == 0
    assert drained(session)["site"].tolist() == [1]
    assert session.pending == 0


# ---- graphs


def test_a_captured_scan_writes_a_record_per_replay(core: Any, session: Any) -> None:
    x = torch.zeros(5000, device=WHERE)
    session.scan_at(x, 7, int(Phase.FORWARD))
    drained(session)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        assert session.scan_at(x, 7, int(Phase.FORWARD))
    for _ in range(3):
        graph.replay()
    x[17] = float("nan")
    graph.replay()
    records = drained(session)
    assert ((records["flags"] & int(Flag.REPLAY)) != 0).tolist() == [True] * 4
    assert (records["step"] - records["step"][0]).tolist() == [0, 1, 2, 3]
    assert records["max"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert records["n_nan"].tolist() == [0, 0, 0, 1]
    assert records["first_bad"].tolist() == [-1, -1, -1, 17]


def test_a_model_can_be_captured_while_it_is_watched(core: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(WHERE)
    x = torch.randn(4, 8, device=WHERE)
    with nanscan.enable(model, on_anomaly="record") as scanner, torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)
        graph.replay()
        torch.cuda.synchronize()
        good = out.clone()
        scanner.flush()
        assert scanner.first is None
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, good)


def test_scan_in_a_capture_is_refused_and_leaves_it_whole(core: Any) -> None:
    x = torch.ones(10, device=WHERE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
        with pytest.raises(nanscan.NanscanError, match="captures a graph"):
            nanscan.scan(x)
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [2.0] * 10
