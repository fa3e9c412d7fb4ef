"""Devices without a library: the values of records, and what the launches may not touch. See csrc/hooks/torch_ring.

python torch_device.py torch|kernel|either|triton QUESTION [ARGS]
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from late import WithoutLibrary, answer, start
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nanscan
from nanscan.record import RECORD_DTYPE

warnings.simplefilter("ignore")
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.complex128,
]  # fmt: skip


def oracle_of(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scan_conftest", Path(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def session(capacity: int = 256) -> Any:
    made = LATE.core.Session(capacity)
    assert made.open_device(0), made.device_error
    return made


def records_of(on: Any, *tensors: torch.Tensor) -> np.ndarray:
    for tensor in tensors:
        assert on.scan_at(tensor, 7, 2)
    on.flush_device()
    return np.frombuffer(on.drain(), RECORD_DTYPE)


def layouts(t: torch.Tensor) -> dict[str, torch.Tensor]:
    """Views of [n >= 24] values."""
    n = t.numel() // 12 * 12
    grid = t[:n].reshape(-1, 4, 3)
    out = {
        "flat": t, "one": t[:1], "scalar": t[3].reshape(()), "odd start": t[1:], "strided": t[::3],
        "transposed": grid.transpose(0, 2), "columns": grid[:, :, 1], "expanded": grid[:, :1, :].expand(-1, 5, -1),
        "neg": torch._neg_view(t), "neg strided": torch._neg_view(grid.transpose(0, 1)),
    }  # fmt: skip
    if t.is_complex():
        out |= {"conj": t.conj(), "conj neg": torch._neg_view(t.conj()), "real of conj": t.conj().imag}
    return out


def planted(oracle: ModuleType, dtype: torch.dtype, n: int, share: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    real, parts = dtype.to_real(), 2 * n if dtype.is_complex else n
    out = (torch.randn(parts, generator=generator, dtype=torch.float64) * 2 + 3).to(real)
    pool = oracle.specials(real, ends=seed % 2 == 0)
    pick = pool[torch.randint(len(pool), (parts,), generator=generator)]
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[real.itemsize]
    where = torch.rand(parts, generator=generator) < share
    out = torch.where(where, pick.view(bits), out.view(bits)).view(real)
    return torch.view_as_complex(out.reshape(n, 2)) if dtype.is_complex else out


def values(path: str, few: str = "") -> Any:
    """Every dtype in every layout, against numpy in long double."""
    oracle, on = oracle_of(path), session()
    wrong, n = [], 0
    lengths = [(97, 0.3)] if few else [(24, 0.0), (97, 0.3), (1000, 0.02), (5000, 0.0), (60, 1.0)]
    for dtype in DTYPES:
        for seed, (length, share) in enumerate(lengths):
            for name, tensor in layouts(planted(oracle, dtype, length, share, seed)).items():
                if dtype.itemsize == 1 and "neg" in name:
                    continue  # torch has no neg for them
                (record,) = records_of(on, tensor).reshape(-1, 1)
                n += 1
                complaint = oracle.first_mismatch(tensor, record, oracle.TOLERANCE[tensor.dtype])
                if complaint:
                    wrong.append(f"{name} of {length}: {complaint}")
    return {"n": n, "wrong": wrong[:10]}


def precision(path: str) -> Any:
    """Data whose moments plain sums would lose; 1e-12 of a deviation is what two passes in float64 keep."""
    oracle, on = oracle_of(path), session()
    normal = torch.randn(20000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = {
        "shifted": (normal + 1e4).float(),
        "far shifted": normal + 1e9,
        "half infinite": torch.where(torch.arange(20000) % 2 == 0, -torch.inf, normal + 1e4).float(),
        "outlier": torch.cat([normal, torch.tensor([1e6])]).float(),
        "huge": normal * 1e150,
        "opposite ends": torch.tensor([1.7e308, -1.7e308] * 50, dtype=torch.float64),
        "constant": torch.full((3001,), 0.1, dtype=torch.float64),
    }
    wrong = []
    for name, tensor in data.items():
        (record,) = records_of(on, tensor).reshape(-1, 1)
        complaint = oracle.first_mismatch(tensor, record, 1e-9 if name == "far shifted" else 1e-12)
        if complaint and name != "opposite ends":
            wrong.append(f"{name}: {complaint}")
        if name == "opposite ends" and (record["max"][0], record["m2"][0]) != (1.7e308, np.inf):
            wrong.append(f"{name}: {record}")
    return wrong


def pieces(path: str) -> Any:
    """More elements than are looked at together, contiguous or not, and many more than there is memory for."""
    on = session()
    n = (1 << 22) + 5
    flat = torch.ones(2 * n)
    flat[n + 3], flat[0] = float("nan"), 3.0
    wide = flat[: 2 * n // 4 * 4].reshape(4, -1).t()
    many = torch.tensor([1.0, float("inf")]).reshape(2, 1, 1).expand(2, 3000, 3000)
    out = {}
    for name, tensor in {"flat": flat, "wide": wide, "many": many}.items():
        (record,) = records_of(on, tensor)
        bad = (~tensor.reshape(-1).isfinite()).nonzero()[0].item()
        finite = tensor.reshape(-1)[tensor.reshape(-1).isfinite()].double()
        out[name] = {
            "n": int(record["n"]) == tensor.numel(),
            "first": int(record["first_bad"]) == bad,
            "bad": int(record["n_nan"] + record["n_posinf"]) == tensor.numel() - finite.numel(),
            "mean": abs(record["mean"] - finite.mean().item()) < 1e-12,
            "m2": abs(record["m2"] - ((finite - finite.mean()) ** 2).sum().item()) < 1e-6,
            "max": float(record["max"]) == finite.max().item(),
        }
    return {name: [k for k, good in facts.items() if not good] for name, facts in out.items()}


class NoOps(TorchDispatchMode):
    """Whoever sees an operator here has been seen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"seen: {func}")


class NoFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"seen: {func}")


def unseen() -> Any:
    """The same record under modes, autocast, inference, a profiler and functorch, and none of them notices."""
    tensor = torch.arange(1.0, 50.0)
    on = session()
    want = records_of(on, tensor)["m2"].tolist()
    leaf = tensor.clone().requires_grad_()
    out: dict[str, Any] = {}

    def take(name: str, context: Any, t: torch.Tensor = tensor) -> None:
        with context:
            on.scan_at(t, 7, 2)
        on.flush_device()
        out[name] = np.frombuffer(on.drain(), RECORD_DTYPE)["m2"].tolist() == want

    take("dispatch mode", NoOps())
    take("function mode", NoFunctions())
    take("autocast", torch.autocast("cpu", torch.bfloat16))
    take("inference", torch.inference_mode())
    take("leaf", torch.enable_grad(), leaf)
    take("not a leaf", torch.enable_grad(), leaf * 1)
    torch.use_deterministic_algorithms(True)
    take("deterministic", torch.no_grad())
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    take("profiler", profile)
    out["profiled"] = [event.key for event in profile.key_averages() if event.key.startswith("aten::")]
    tiny = torch.tensor([1e-40, 1.0])
    torch.set_flush_denormal(True)
    out["subnormal"] = int(records_of(on, tiny)["n_subnormal"][0])
    torch.set_flush_denormal(False)
    out["grads"] = [leaf.grad is None, leaf._version]
    return out


def no_room() -> Any:
    """Held records fill the ring, and pieces fill it sooner: what finds no room is counted, and is nobody's verdict."""
    on = session(4)
    huge = torch.ones(1).expand(1 << 22, 5000)  # more pieces than the 4 + 4096 rows there are
    facts = {"scanned": [on.scan_at(t, 7, 2) for t in (torch.ones(3), huge, *[torch.ones(3)] * 3)]}
    facts["dropped"] = on.counters()["dropped"]
    on.flush_device()
    facts["n"] = np.frombuffer(on.drain(), RECORD_DTYPE)["n"].tolist()
    on.scan_at(torch.full((2,), float("nan")), 7, 2)
    on.flush_device()
    facts["after"] = np.frombuffer(on.drain(), RECORD_DTYPE)["n_nan"].tolist()
    facts["pending"] = on.pending
    return facts


def captured() -> Any:
    """A stream that captures: nothing is launched, and what was not read is counted."""
    net = torch.nn.Linear(2, 2)
    with nanscan.enable(net, on_anomaly="record", escalate=False) as scanner:
        LATE.stream(LATE.core.STAND_IN_CAPTURING)
        net(torch.full((1, 2), float("nan")))
        LATE.stream(0)
        captured = sum(n for why, n in scanner.coverage["unscanned"].items() if "device" in why)
        net(torch.ones(1, 2))
        scanner.flush()
        before = scanner.first
        net(torch.full((1, 2), float("nan")))
        scanner.flush()
        return {"unscanned": captured, "before": before is None, "after": scanner.first is not None,
                "failure": scanner.coverage["failure"]}  # fmt: skip


# ---- a kernel that fails


def failing() -> Any:
    """With a kernel that raises at its third tensor."""
    assert isinstance(LATE, WithoutLibrary)
    LATE.fail(3)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with nanscan.enable(net, on_anomaly="record", escalate=False) as scanner:
        for _ in range(3):
            net(torch.ones(1, 2))
        net(torch.full((1, 2), float("nan")))
        scanner.flush()
        return {
            "why": LATE.core.kernel_failure(),
            "found": None if scanner.first is None else scanner.first.phase,
            "unscanned": sum(scanner.coverage["unscanned"].values()),
            "failure": scanner.coverage["failure"],
        }


def interrupted() -> Any:
    """Ctrl-C that arrives while a kernel is being launched stops the program, not the kernel."""
    launch = LATE._launch
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(part: torch.Tensor, row: torch.Tensor, dtype: int) -> None:
        LATE._launch = launch
        raise KeyboardInterrupt

    LATE._launch = interrupt
    on = session()
    try:
        on.scan_at(torch.ones(3), 7, 2)
        for _ in range(10**6):
            pass
    except KeyboardInterrupt:
        return "interrupted"
    return "swallowed"


def asked_meanwhile() -> Any:
    """Threads that hold the GIL ask for what a launch could lock, while others launch by way of Python."""
    on, stop, faults = session(1 << 12), threading.Event(), []

    def work(number: int) -> None:
        try:
            LATE.stream(0x100 + number)
            for i in range(200):
                on.scan_at(torch.full((3,), float(i)), number, 2)
        except BaseException as err:
            faults.append(repr(err))

    def ask() -> None:
        while not stop.is_set():
            on.counters(), on.pending, on.device_error, on.poll_device(), LATE.release(5)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    asker = threading.Thread(target=ask)
    for thread in (*workers, asker):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    asker.join()
    on.flush_device()
    records = np.frombuffer(on.drain(), RECORD_DTYPE)
    sums = {int(site): float(records["max"][records["site"] == site].sum()) for site in np.unique(records["site"])}
    return {"faults": faults, "records": len(records), "sums": sums, "pending": on.pending}


LATE = start()
if __name__ == "__main__":
    answer(globals()[sys.argv[2]](*sys.argv[3:]))
