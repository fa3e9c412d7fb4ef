"""The write side: what is observed, and where. Hooks decide that a tensor is scanned; they do not judge it."""
