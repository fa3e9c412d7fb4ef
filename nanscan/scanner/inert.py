"""What enable() returns under NANSCAN=0: the same object, no hook, nothing seen."""

from __future__ import annotations

import os
from typing import Any

from nanscan import config
from nanscan.events.event import Event
from nanscan.report import lines_html
from nanscan.scanner.scanner import Scanner


class InertScanner(Scanner):
    """A scanner that never looks. Every call is legal and cheap."""

    def __init__(self, options: config.Options, settings: config.Settings) -> None:
        self.options = options
        self._settings = settings
        self._closed = False
        self._failure = None
        self._pid = os.getpid()

    @property
    def events(self) -> tuple[Event, ...]:
        return ()

    @property
    def first(self) -> Event | None:
        return None

    @property
    def stats(self) -> dict[str, Any]:
        return {"steps": 0, "off": True}

    @property
    def coverage(self) -> dict[str, Any]:
        return {"level": None, "modules": {}, "notes": ["NANSCAN=0: nothing is watched"]}

    def report(self) -> str:
        return "nanscan: off (NANSCAN=0).\n  nothing was watched; next: unset NANSCAN"

    def _repr_html_(self) -> str:
        return lines_html(self.report().splitlines())

    def poll(self) -> None:
        return

    def flush(self) -> None:
        return

    def step(self) -> None:
        self._require_open("step()")

    def _finish(self) -> None:
        self._closed = True
