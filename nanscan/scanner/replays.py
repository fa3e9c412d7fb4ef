"""Graphs of a device that were captured once and are replayed: each replay is judged as a step of its own.

No hook runs in a replay, so no point of the program is reached there. Its records come in one piece, in the order of
the program, and carry the number of their step: that of the capture plus the replays before it.
"""

from __future__ import annotations

import numpy as np

from nanscan.events.event import Event
from nanscan.origin import ModuleOrigin
from nanscan.record import Flag, LinkCode, Phase
from nanscan.scanner.health import HealthWatch


class Replays:
    """Puts the pieces of replays together and has them judged.

    Args:
        health: a watch for replays alone; the running step's own is another.
    """

    def __init__(self, health: HealthWatch) -> None:
        self._health = health
        self._held: list[np.ndarray] = []  # of a replay that has not all been drained yet

    def take(self, records: np.ndarray, origin: ModuleOrigin, *, scaler: bool, skipped: bool) -> list[Event]:
        """Records of replays, in order; the events of those that end among them.

        Args:
            origin: who judges replays. scaler, skipped: what a GradScaler has said lately.
        """
        events: list[Event] = []
        ends = np.flatnonzero((records["flags"] & int(Flag.LINK) != 0) & (records["n"] == int(LinkCode.REPLAY_END)))
        begin = 0
        for end in (ends + 1).tolist():
            replay = np.concatenate([*self._held, records[begin:end]])
            self._held, begin = [], end
            events += self._judge(replay, origin, scaler, skipped)
        if begin < len(records):
            self._held.append(records[begin:])
        return events

    def _judge(self, replay: np.ndarray, origin: ModuleOrigin, scaler: bool, skipped: bool) -> list[Event]:
        self._health.add(replay)
        events: list[Event] = []
        if origin.wants_healthy_steps or (replay["flags"] & int(Flag.BAD)).any():
            origin.feed(replay)
            origin.witness(replay)
        if (replay["phase"] == int(Phase.OPTIMIZER)).any():
            events += origin.decide("optimizer", scaler=scaler, skipped=skipped)
        events += origin.decide("boundary", scaler=scaler, skipped=skipped)
        return events + self._health.end_step(int(replay["step"][-1]))
