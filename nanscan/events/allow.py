"""What the user has declared to be expected: counted, never alarmed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from nanscan.events.event import HEALTH_KINDS, Event

VALUE_KINDS = ("nan", "inf", "-inf", "+inf")
KINDS = VALUE_KINDS + HEALTH_KINDS
_ANY = frozenset(("nan", "-inf", "+inf", *HEALTH_KINDS))


class Allowance:
    """One ``allow(...)``. `count` says how often it applied; `remove()` takes it back."""

    def __init__(self, owner: AllowList, pattern: str, kinds: frozenset[str]) -> None:
        self.pattern = pattern
        self.kinds = kinds
        self.count = 0
        self._owner = owner

    def remove(self) -> None:
        """Alarm again. A second call does nothing."""
        self._owner._drop(self)

    def covers(self, names: Iterable[str], kinds: frozenset[str]) -> bool:
        """Whether all `kinds` are allowed at one of the `names`."""
        return kinds <= self.kinds and any(fnmatchcase(name, self.pattern) for name in names)

    def __repr__(self) -> str:
        return f"<allow {self.pattern!r}, {', '.join(sorted(self.kinds))}, {self.count} times>"


class AllowList:
    """All allowances. A pattern is a glob matched against module name, tensor name, check name and op."""

    def __init__(self) -> None:
        self._entries: tuple[Allowance, ...] = ()  # replaced, never changed: readers on other threads see a whole one

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Allowance]:
        return iter(self._entries)

    def allow(self, site_or_op: str, kinds: str | Iterable[str] | None = None) -> Allowance:
        """Expect values of these kinds there: "nan", "-inf", "+inf", "inf" for both, or a health kind. Default: all."""
        if not isinstance(site_or_op, str):
            raise TypeError(
                f"allow(site_or_op={site_or_op!r}): expected a string, found {type(site_or_op).__name__}; "
                "give a module name ('blocks.2.attn', globs allowed), a parameter or check name, or an op ('aten::log')"
            )
        entry = Allowance(self, site_or_op, _ANY if kinds is None else _expand(kinds))
        self._entries = (*self._entries, entry)
        return entry

    def clear(self) -> None:
        """Forget every allowance."""
        self._entries = ()

    def permits(self, names: Iterable[str | None], kinds: Iterable[str]) -> bool:
        """Whether one allowance covers all `kinds` at one of `names`; counts it if so."""
        if not self._entries:
            return False
        known, wanted = [name for name in names if name is not None], frozenset(kinds)
        for entry in self._entries:
            if wanted and entry.covers(known, wanted):
                entry.count += 1
                return True
        return False

    def permits_event(self, event: Event) -> bool:
        """`permits` for a finished event."""
        return self.permits((event.module, event.tensor, event.op), event_kinds(event))

    def _drop(self, entry: Allowance) -> None:
        self._entries = tuple(e for e in self._entries if e is not entry)


def event_kinds(event: Event) -> frozenset[str]:
    """The kinds an allowance has to cover: signs apart where the statistics tell them apart."""
    if not event.nonfinite:
        return frozenset((event.kind,))
    if event.stats is None:
        return frozenset({"nan": ("nan",), "inf": ("-inf", "+inf"), "both": ("nan", "-inf", "+inf")}[event.kind])
    counts = {"nan": event.stats.nan, "+inf": event.stats.posinf, "-inf": event.stats.neginf}
    return frozenset(kind for kind, count in counts.items() if count)


def _expand(kinds: str | Iterable[str]) -> frozenset[str]:
    if not isinstance(kinds, Iterable):
        raise TypeError(
            f"allow(kinds={kinds!r}): found {type(kinds).__name__}; use some of {', '.join(map(repr, KINDS))}"
        )
    wanted = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown or not wanted:
        found = ", ".join(map(repr, unknown)) or "nothing"
        raise ValueError(f"allow(kinds=...): found {found}; use some of {', '.join(map(repr, KINDS))}")
    return frozenset(k for kind in wanted for k in (("-inf", "+inf") if kind == "inf" else (kind,)))
