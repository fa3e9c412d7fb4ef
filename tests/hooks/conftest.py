"""Both sessions, the compiled one and its plain twin, driven through ModelHooks; and their record streams compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from nanscan.buffer import drain
from nanscan.hooks import plain
from nanscan.hooks.model_hooks import ModelHooks
from nanscan.record import COUNTS, Flag, LinkCode
from nanscan.sites import NO_SITE, SiteTable

EXACT = ("seq", "call", "step", "site", "dtype", "flags", *COUNTS, "first_bad", "output_index", "device", "phase")


@dataclass(frozen=True)
class Core:
    """One implementation: its session class, and what stands beside it in its module."""

    name: str
    module: ModuleType

    def session(self, capacity: int = 4096) -> Any:
        return self.module.Session(capacity) if self.name == "native" else self.module.PlainSession(capacity)


@dataclass(frozen=True)
class Row:
    """A record, readable."""

    kind: str  # the site's kind, or that of the marker: "OUTPUT", "ENTER", "LINK"
    module: str | None  # "-" for no site
    flags: Flag
    record: Any

    def __getattr__(self, name: str) -> int:
        return self.record[name].item()

    @property
    def link(self) -> LinkCode:
        return LinkCode(self.n)

    def __str__(self) -> str:
        names = ("seq", "call", "n", "n_nan", "n_posinf", "n_neginf", "output_index", "phase", "device")
        values = " ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{self.kind:<11} {self.module!r:<12} {self.flags!r} {values}"


@dataclass
class Watch:
    """A model with hooks on."""

    core: Core
    model: nn.Module
    session: Any
    sites: SiteTable
    begun: list[None] = field(default_factory=list)
    attended: list[int] = field(default_factory=list)
    hooks: ModelHooks | None = None

    def drop(self) -> None:
        """Take the hooks off, close the session and let go of it."""
        if self.hooks is not None:
            self.hooks.remove()
            self.session.close()
        self.session = self.hooks = None

    def records(self) -> Any:
        return drain(self.session)

    def rows(self) -> list[Row]:
        return [self._row(record) for record in self.records()]

    def _row(self, record: Any) -> Row:
        flags, site = Flag(int(record["flags"])), int(record["site"])
        place = self.sites[site] if site != NO_SITE else None
        kind = "LINK" if flags & Flag.LINK else "ENTER" if flags & Flag.ENTER else place.kind.name
        return Row(kind, "-" if place is None else place.tensor or place.module, flags, record)


def native_module() -> ModuleType | None:
    """nanscan._C; None where it is not built, unless NANSCAN_REQUIRE_NATIVE=1 says that it must be."""
    try:
        from nanscan import _C
    except ImportError as err:
        if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1":
            pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1, but nanscan._C cannot be imported: {err}")
        return None
    return _C


@pytest.fixture(scope="session")
def cores() -> list[Core]:
    """What is there of the two."""
    native = native_module()
    found = [Core("plain", plain)]
    return found if native is None else [Core("native", native), *found]


@pytest.fixture(params=["native", "plain"])
def core(request: pytest.FixtureRequest, cores: list[Core]) -> Core:
    """One after the other."""
    for core in cores:
        if core.name == request.param:
            core.module.clear_thread_state()
            return core
    pytest.skip("nanscan._C is not built here")


@pytest.fixture
def hook() -> Iterator[Callable[..., Watch]]:
    """hook(core, model, capacity=...) puts hooks on the model; they come off when the test ends."""
    watches: list[Watch] = []

    def put(core: Core, model: nn.Module, capacity: int = 4096, session: Any = None, **options: Any) -> Watch:
        watch = Watch(core, model, session or core.session(capacity), SiteTable())
        watch.hooks = ModelHooks(
            model,
            watch.session,
            watch.sites,
            begin=lambda: watch.begun.append(None),
            attend=watch.attended.append,
            **options,
        )
        watches.append(watch)
        return watch

    yield put
    for watch in watches:
        watch.drop()
    for watch in watches:
        assert watch.core.module.module_depth() == 0, f"{watch.core.name}: a module call is still on the stack"


@pytest.fixture
def streams(cores: list[Core], hook: Callable[..., Watch]) -> Callable[..., list[Row]]:
    """streams(build, drive) hooks build()'s model, lets drive(watch) run it, once per core; the records must agree."""

    def run(build: Callable[[], nn.Module], drive: Callable[[Watch], Any], **options: Any) -> list[Row]:
        results = []
        for core in cores:
            core.module.clear_thread_state()
            torch.manual_seed(7)
            watch = hook(core, build(), **options)
            drive(watch)
            rows = watch.rows()
            shapes = [watch.session.shape(row.shape) for row in rows]
            counters = watch.session.counters()
            results.append((rows, shapes, counters, list(watch.attended)))
        if len(results) == 2:
            compare(*results)
        return results[-1][0]

    return run


def compare(native: tuple[Any, ...], twin: tuple[Any, ...]) -> None:
    """The first mismatch, with both streams."""
    for i, (ours, theirs) in enumerate(zip(native[0], twin[0], strict=False)):
        for name in EXACT:
            assert getattr(ours, name) == getattr(theirs, name), f"record {i}, {name}:{both(native[0], twin[0])}"
        for name in ("min", "max"):
            assert getattr(ours, name) == getattr(theirs, name), f"record {i}, {name}"
        size = max(abs(theirs.min), abs(theirs.max), 1e-300) if theirs.n else 1.0
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-6, abs=1e-6 * size), f"record {i}, mean"
        assert ours.m2 == pytest.approx(theirs.m2, rel=1e-5, abs=1e-9 * size * size), f"record {i}, m2"
    assert len(native[0]) == len(twin[0]), f"numbers of records:{both(native[0], twin[0])}"
    for i, what in enumerate(("shapes", "counters", "what attend() was given"), start=1):
        assert native[i] == twin[i], what


def both(native: list[Row], twin: list[Row]) -> str:
    lines = [f"\n  native {i:3} {row}" for i, row in enumerate(native)]
    return "".join([*lines, *(f"\n  plain  {i:3} {row}" for i, row in enumerate(twin))])
