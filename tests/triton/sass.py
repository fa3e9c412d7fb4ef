"""Reading NVIDIA machine code as text: cuobjdump -sass."""

from __future__ import annotations

import re

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)([^;]*)", re.MULTILINE)


def main_loop(text: str) -> list[str]:
    """Opcodes of the smallest loop that has the widest and most global loads; [] if no loop has any."""
    code = [(int(at, 16), op, rest) for at, op, rest in LINE.findall(text)]
    best: list[str] = []
    for at, op, rest in code:
        target = re.search(r"\b0x([0-9a-f]+)\s*$", rest) if op.startswith("BRA") else None
        if target is None or int(target[1], 16) > at:
            continue
        body = [name for where, name, _ in code if int(target[1], 16) <= where <= at]
        if _rank(body) > _rank(best):
            best = body
    return best


def _rank(body: list[str]) -> tuple[int, int, int]:
    loads = [op for op in body if op.startswith("LDG")]
    wide = sum(op.endswith(".128") for op in loads)
    return wide, -(len(loads) - wide), -len(body)
