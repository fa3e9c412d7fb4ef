"""Every training of trainings.py, its records released in one of several ways: the events of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from late import Late, answer, plain, start
from torch.nn.modules.module import register_module_forward_pre_hook
from trainings import TRAININGS, Run


class Release:
    """When held records go. at_flush: never before somebody waits for them."""

    def __init__(self, late: Late | None) -> None:
        self.late = late

    @contextmanager
    def around(self, run: Run) -> Iterator[Callable[[int], None]]:
        yield lambda step: None


class AtOnce(Release):
    """All of a step's when it is over."""

    @contextmanager
    def around(self, run: Run) -> Iterator[Callable[[int], None]]:
        yield lambda step: self.late.release() and None


class StepLate(Release):
    """All of the step before."""

    @contextmanager
    def around(self, run: Run) -> Iterator[Callable[[int], None]]:
        held = 0

        def tick(step: int) -> None:
            nonlocal held
            self.late.release(held)
            held = run.scanner._core.pending

        yield tick


class InPieces(Release):
    """A few at a time, amid the forward, from two streams that modules take turns on."""

    seed = 1

    @contextmanager
    def around(self, run: Run) -> Iterator[Callable[[int], None]]:
        InPieces.seed += 1
        rng = random.Random(InPieces.seed)

        def stir(*_: Any) -> None:
            self.late.stream(rng.choice((0x10, 0x20)))
            if rng.random() < 0.5:
                self.late.release(rng.randrange(12), rng.randrange(1 << 30))

        handle = register_module_forward_pre_hook(stir)
        try:
            yield stir
        finally:
            handle.remove()
            self.late.stream(0)


def main() -> None:
    late = start()
    ways = {"cpu": Release} if late is None else {
        "at once": AtOnce, "a step late": StepLate, "in pieces": InPieces, "in other pieces": InPieces,
        "at flush": Release,
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for way, kind in ways.items():
        for name, training in TRAININGS.items():
            run = training()
            with kind(late).around(run) as tick:
                scanner = run.run(tick)
            found.setdefault(way, {})[name] = {
                "events": [plain(event) for event in scanner.events],
                "first": None if scanner.first is None else str(scanner.first),
                "steps": scanner.stats["steps"],
                "skips": scanner.stats["skips"],
                "repeats": scanner.stats["repeats"],
                "dropped": scanner.stats["dropped"],
                "scans": scanner.stats["scans"],
                "failure": scanner.coverage["failure"],
            }
    answer(found)


if __name__ == "__main__":
    main()
