"""Op level on a device: python ops.py LIBRARY NAME [ARGS]."""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
import weakref
import zlib
from pathlib import Path
from typing import Any

import torch
from late import answer, start
from torch import nn

import nanscan

warnings.simplefilter("ignore")


def told(scanner: Any) -> list[dict[str, Any]]:
    keys = ("severity", "kind", "role", "phase", "op", "module", "step", "device", "tensor", "chain")
    return [{key: getattr(event, key) for key in keys} | {"source": event.source} for event in scanner.events]


def trace(run: Any) -> list[dict[str, Any]]:
    with nanscan.trace(on_anomaly="record") as scanner:
        run()
        scanner.flush()
        return told(scanner)


# ---- values


def partial() -> Any:
    """Writes into a part of a storage: what is left of it counts, and what is not read does not."""

    def bad_then_good() -> None:
        a = torch.ones(4)
        a[1:2].sub_(2).log_()
        a[:1].fill_(3.0)  # does not clean the rest
        (a + 1).sum().item()

    def overwritten() -> None:
        a = torch.ones(4).sub_(2).log_()
        a.fill_(1.0)
        (a + 1).sum().item()

    def unfilled_and_unread() -> None:
        a = torch.empty(10)
        a[:5] = 1.0
        (a[:5] * 2).sum().item()

    return {f.__name__: trace(f) for f in (bad_then_good, overwritten, unfilled_and_unread)}


def unfilled() -> Any:
    def run() -> None:
        a = torch.empty(64)
        a.numpy()[3] = float("nan")  # what nobody has filled holds anything
        (a * 2).sum().item()

    return trace(run)


def inputs() -> Any:
    """The block shows what a bad op read, though nothing is read twice."""
    with nanscan.trace(on_anomaly="record") as scanner:
        x = torch.arange(4.0)
        y = x * 3
        torch.log(y - 100).sum().item()
        scanner.flush()
        (stats,) = scanner.first.inputs.values()
        return {"absmax": stats.absmax, "numel": stats.numel, "report": scanner.report()}


def extension() -> Any:
    def spoil(t: torch.Tensor) -> None:
        t.numpy()[1] = float("nan")

    wrapped = nanscan.extension(spoil, "my::spoil")

    def run() -> None:
        h = torch.ones(4) * 2
        wrapped(h)
        (h + 1).sum().item()

    return trace(run)


def module_then_op() -> Any:
    """A follow-up at op level after an anomaly at module level."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.bad = nn.Linear(4, 4), nn.Linear(4, 1), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.last(torch.log(h - 100) if self.bad else h)

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanscan.enable(net, on_anomaly="record") as scanner:
        for step in range(12):
            net.bad = step in (2, 3, 4, 5)
            optimizer.zero_grad()
            loss = net(torch.ones(3, 4)).square().mean()
            loss.backward()
            if not net.bad:
                optimizer.step()
            else:
                scanner.step()
            LATE.release(seed=step)
        scanner.flush()
        return {"events": told(scanner), "notes": scanner.coverage["notes"]}


def healthy() -> Any:
    """Steps of a small net: no event, no record that reaches a judge, no tensor kept."""
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    seen: list[int] = []
    with nanscan.enable(net, level="op", on_anomaly="record") as scanner:
        feed = scanner._levels.origin.feed
        scanner._levels.origin.feed = lambda records: (seen.append(len(records)), feed(records))[1]
        for step in range(20):
            optimizer.zero_grad()
            h = net(torch.randn(4, 8))
            loss = h.square().mean()
            loss.backward()
            optimizer.step()
            gone = weakref.ref(h)
            del h, loss
            if gone() is not None:
                raise SystemExit("an activation is kept while its record is late")
            LATE.release(seed=step)
        scanner.flush()
        return {"events": told(scanner), "fed": sum(seen), "storages": scanner._core.n_storages()}


def same_bits() -> Any:
    """Every number of a training, as bytes."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((6, 6), float("-inf")).triu(1)
            return self.layer(x, src_mask=mask)

    net = nn.Sequential(nn.Linear(4, 16), Block(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scanner = nanscan.enable(net, level="op", on_anomaly="raise") if LATE is not None else None
    out = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 6, 4)).square().mean()
        loss.backward()
        out += [loss.detach(), *(p.grad.clone() for p in net.parameters())]
        optimizer.step()
        out += [p.detach().clone() for p in net.parameters()]
        if LATE is not None:
            LATE.release(seed=1)
    if scanner is not None:
        scanner.close()
    return [zlib.crc32(t.numpy().tobytes()) for t in out]


def threads() -> Any:
    """Four threads at once, each on a stream of its own, one of them with a fault."""

    def work(number: int) -> None:
        LATE.stream(0x100 + number)
        for i in range(30):
            x = torch.full((4,), -1.0 if (number, i) == (2, 20) else 1.0)
            nanscan.check(torch.log(x).add_(1).sum(), f"thread {number}")

    with nanscan.trace(on_anomaly="record") as scanner:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        scanner.flush()
        return [(event["op"], event["severity"]) for event in told(scanner)]


# ---- the corpus


def corpus(folder: str) -> Any:
    """What score.py says of every case, with each record held back until the flush."""
    spec = importlib.util.spec_from_file_location("score", Path(folder) / "score.py")
    assert spec is not None
    assert spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    out = {}
    for path in sorted(Path(folder).glob("c[0-9]*.py")):
        group = score.group_of(score.load(path).EXPECT)
        if group == "dynamics":
            continue
        ok = score.judge(*score.run(path, "op"), "op")
        behind = score.load(path).EXPECT.get("event") == "foreign"
        out[path.stem] = {"wrong": [f for f, good in ok.items() if not good and f != "cause"], "behind": behind}
    return out


LATE = start()
answer(globals()[sys.argv[2]](*sys.argv[3:]))
