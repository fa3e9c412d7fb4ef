"""The read side's common words: what an event is, which ones are expected, how they are logged and read back."""

from __future__ import annotations

from nanscan.events.aftermath import Aftermath
from nanscan.events.allow import Allowance, AllowList
from nanscan.events.event import Event
from nanscan.events.log import EventLog
from nanscan.events.read import RunLog, read_dir

__all__ = ["Aftermath", "AllowList", "Allowance", "Event", "EventLog", "RunLog", "read_dir"]
