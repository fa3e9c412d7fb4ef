"""The ring of records, seen from the read side."""

from nanscan.buffer.drain import drain

__all__ = ["drain"]
