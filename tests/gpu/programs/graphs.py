"""Hooks that run while a stream captures, and replays of what they launched.

The stand-in's kernels read memory when they are replayed, so everything that a captured launch looks at is kept, and a
replay is played by writing the values that a device would have computed there.
"""

from __future__ import annotations

from typing import Any

import torch
from late import Late, answer, plain, start
from torch import nn

import nanscan
from nanscan.buffer import drain
from nanscan.record import Flag

NAN, INF = float("nan"), float("inf")
STREAM = 0x77


class Trap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.inner, self.b = nn.Linear(4, 8), nn.Sequential(Trap(), nn.Linear(8, 8)), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.inner(self.a(x)))


def write(t: torch.Tensor, value: float) -> None:
    """As a replay writes: torch does not hear of it."""
    t.data.fill_(value)


class Captured:
    """A net that has run eagerly for `warmup` steps, and then once into a graph, with everything in it still there."""

    def __init__(self, late: Late, training: bool, warmup: int = 2, **options: Any) -> None:
        torch.manual_seed(0)
        self.late, self.training = late, training
        self.net = Net()
        self.values: dict[str, torch.Tensor] = {}
        self.grads: dict[str, torch.Tensor] = {}
        self.is_captured = False
        for name, module in self.net.named_modules():
            module.register_forward_hook(lambda _m, _args, out, name=name: self._keep(name, out))
        self.x = torch.randn(3, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.scanner = nanscan.enable(self.net, **{"on_anomaly": "record", "escalate": False, **options})
        for _ in range(warmup):
            self.step()
            late.release()
        self.core = self.scanner._core
        self.scanner.flush()
        before = (self.core.pending, self.core.counters()["scans"], late.launches)
        late.stream(STREAM)
        late.capture(STREAM, True)
        self.step()
        late.capture(STREAM, False)
        self.is_captured = True
        late.stream(0)
        self.pending = self.core.pending - before[0]
        self.scans = self.core.counters()["scans"] - before[1]
        self.launches = late.launches - before[2]
        self.captured_at = self.core.step

    def _keep(self, name: str, out: torch.Tensor) -> None:
        if self.is_captured:  # a graph owns its memory: what was captured stays, whatever runs beside it
            return
        self.values[name] = out.detach()
        if out.requires_grad:
            out.register_hook(lambda grad: self.grads.__setitem__(name, grad))

    def step(self) -> None:
        if not self.training:
            with torch.no_grad():
                self.net(self.x)
            return
        self.optimizer.zero_grad()
        self.net(self.x).square().mean().backward()
        self.optimizer.step()

    def replay(self) -> None:
        self.late.replay(STREAM)

    def spoil(self, *names: str) -> None:
        for name in names:
            write(self.values[name], NAN)

    def mend(self, *names: str) -> None:
        for name in names:
            write(self.values[name], 0.5)


def records(late: Late) -> Any:
    """What of a capture and three replays reaches the ring."""
    run = Captured(late, training=True)
    at_capture = drain(run.core)
    held = late.release()
    for _ in range(3):
        run.replay()
    late.release()
    run.core.poll_device()
    replayed = drain(run.core)
    first, second = (replayed[replayed["step"] == run.captured_at + k] for k in (0, 1))
    for part in (first, second):
        part.flags.writeable = False
    fields = [name for name in first.dtype.names if name not in ("seq", "step", "n")]
    enters = replayed[replayed["flags"] & int(Flag.ENTER) != 0]
    run.scanner.close()
    return {
        "pending": run.pending,
        "held": held,
        "scans": run.scans,
        "launches": run.launches,
        "numbers at capture": int((at_capture["flags"] & int(Flag.LINK | Flag.ENTER) == 0).sum()),
        "links at capture": int((at_capture["flags"] & int(Flag.LINK) != 0).sum()),
        "steps": sorted({int(step) - run.captured_at for step in replayed["step"]}),
        "all are replays": bool((replayed["flags"] & int(Flag.REPLAY) != 0).all()),
        "in one piece": [int(step) - run.captured_at for step in replayed["step"]]
        == sorted(int(step) - run.captured_at for step in replayed["step"]),
        "alike": len(first) == len(second) and all((first[name] == second[name]).all() for name in fields),
        "links": int((first["flags"] & int(Flag.LINK) != 0).sum()),
        "inputs": int((first["flags"] & int(Flag.INPUT) != 0).sum()),
        "batches": enters["n"].tolist(),
        "dropped": run.scanner.stats["dropped"],
    }


def verdict(run: Captured) -> Any:
    run.scanner.close()
    return {
        "captured at": run.captured_at,
        "events": [plain(event) for event in run.scanner.events],
        "failure": run.scanner.coverage["failure"],
    }


def forward_nan(late: Late, release_each: bool) -> Any:
    run = Captured(late, training=False)
    for k in range(6):
        if k == 3:
            run.spoil("inner.0", "inner.1", "inner", "b", "")
        if k == 4:
            run.mend("inner.0", "inner.1", "inner", "b", "")
        run.replay()
        if release_each:
            late.release()
            run.scanner.poll()
    return verdict(run)


def in_pieces(late: Late) -> Any:
    """The records of a replay trickle in, while the program polls."""
    run = Captured(late, training=False)
    for k in range(5):
        if k == 2:
            run.spoil("b", "")
        run.replay()
        while late.release(2, k):
            run.scanner.poll()
    return verdict(run)


def backward_inf(late: Late) -> Any:
    run = Captured(late, training=True)
    for k in range(4):
        if k == 2:  # on its way through inner.1's backward
            for grad in (run.grads["inner.0"], run.grads["a"], run.net.a.weight.grad):
                write(grad, INF)
        run.replay()
    return verdict(run)


def update(late: Late) -> Any:
    run = Captured(late, training=True)
    for k in range(4):
        if k == 1:
            run.net.b.weight.data[0, 3] = NAN
        if k == 2:
            run.spoil("b", "")
        run.replay()
    return verdict(run)


def beside_eager_steps(late: Late) -> Any:
    """Replays, and steps outside that go wrong by themselves later."""
    run = Captured(late, training=False)
    x = run.x.clone()
    for k in range(4):
        run.replay()
        if k == 2:
            x[1, 1] = NAN
        with torch.no_grad():
            run.net(x)
        late.release(7, k)
    return verdict(run)


def raising(late: Late) -> Any:
    """No hook runs in a replay: the safe point is the next call of the scanner's."""
    run = Captured(late, training=False, on_anomaly="raise")
    raised: list[int] = []
    for k in range(4):
        if k == 1:
            run.spoil("b", "")
        run.replay()
        late.release()
        try:
            run.scanner.step()
        except nanscan.NonFiniteError as err:
            raised.append(k)
            raised.append(err.event.step - run.captured_at)
    run.scanner.close()
    return raised


def main() -> None:
    late = start()
    assert late is not None
    answer({
        "records": records(late),
        "forward nan": forward_nan(late, True),
        "forward nan, at flush": forward_nan(late, False),
        "in pieces": in_pieces(late),
        "backward inf": backward_inf(late),
        "update": update(late),
        "beside eager steps": beside_eager_steps(late),
        "raising": raising(late),
    })  # fmt: skip


if __name__ == "__main__":
    main()
