"""On a CUDA device with the CUDA library hidden: python without_library.py triton|torch. For test_on_gpu_without.py."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nanscan
from nanscan import backends
from nanscan.backends import device, watching
from nanscan.record import RECORD_DTYPE


def oracle() -> Any:
    path = Path(__file__).resolve().parents[2] / "scan" / "conftest.py"
    spec = importlib.util.spec_from_file_location("scan_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values() -> list[str]:
    """Views of every dtype against numpy."""
    scan, session, wrong = oracle(), backends.get().core.Session(64), []
    assert session.open_device(0), session.device_error
    for dtype, tolerance in scan.TOLERANCE.items():
        base = torch.randn(240, 41, generator=torch.Generator().manual_seed(0)) * 3
        base[7, 3], base[20, 1], base[3, 3] = float("nan"), float("inf"), 0.0
        here = base.to(dtype)
        for view in (lambda t: t, lambda t: t.t(), lambda t: t[::3, 1:], lambda t: t[:, :1].expand(-1, 9)):
            assert session.scan_at(view(here.cuda()), 1, 2)
            session.flush_device()
            record = torch.frombuffer(bytearray(session.drain()), dtype=torch.uint8).numpy().view(RECORD_DTYPE)
            wrong += filter(None, [scan.first_mismatch(view(here), record, max(tolerance, 5e-6))])
    return wrong


def train(watched: bool) -> dict[str, Any]:
    """Ten steps in which nothing may wait; the loss goes bad in step 7. With what they leave behind."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.randn(10, 16, 32, device="cuda")
    data[7, 3, 3] = float("nan")
    scanner = nanscan.enable(net, on_anomaly="record", escalate=False) if watched else None
    losses = []
    for step in range(10):
        torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        loss = net(data[step]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        torch.cuda.set_sync_debug_mode("default")
    facts: dict[str, Any] = {"bits": torch.stack(losses).view(torch.int32).tolist()}
    if scanner is not None:
        scanner.close()
        first = scanner.first
        facts |= {"first": None if first is None else [first.phase, first.step], "notes": scanner.coverage["notes"],
                  "failure": scanner.coverage["failure"], "scans": scanner.stats["scans"],
                  "unscanned": scanner.stats["unscanned"]}  # fmt: skip
    return facts


def captured() -> dict[str, Any]:
    net, x = nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
    net(x)
    with nanscan.enable(net, on_anomaly="record", escalate=False) as scanner:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            net(x)
        before = scanner.stats["unscanned"]
        graph.replay()
        net(torch.full_like(x, float("nan")))
        scanner.flush()
        return {"unscanned": before, "found": scanner.first is not None, "failure": scanner.coverage["failure"]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    device._outcome = "hidden"
    if sys.argv[1] == "torch":
        device._triton_failed = "hidden"
    reader = watching.prepare(backends.get().core, "auto", 0)
    free, seen = train(False), train(True)
    print(json.dumps({"reader": reader, "values": values(), "train": seen, "same": free["bits"] == seen["bits"],
                      "captured": captured(), "failed": backends.get().core.kernel_failure()}))  # fmt: skip
