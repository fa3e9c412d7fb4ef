"""The session a user holds: hooks on one side, events on the other, a clock in between."""
