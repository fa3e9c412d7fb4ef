"""PTX text to instructions: entries with their parameters, labels, shared arrays.

Only what nvcc and Triton emit for straight kernels: no functions, textures or dynamic parallelism.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class PtxError(Exception):
    """The program did something that would be wrong on a GPU."""


@dataclass(frozen=True, slots=True)
class Instruction:
    guard: tuple[str, bool] | None
    """Predicate register, and whether it is negated."""
    op: tuple[str, ...]
    """"ld.global.v4.b32" as ("ld", "global", "v4", "b32")."""
    args: tuple[str, ...]
    """Operands as text; a vector {..} or an address [..] is one operand."""
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    params: dict[str, tuple[int, int]]
    """name -> (offset, bytes) in the parameter buffer."""
    instructions: list[Instruction]
    labels: dict[str, int]
    local: dict[str, tuple[int, int]]
    """name -> (offset, bytes) of per-thread arrays."""


class Module:
    """A PTX file: `entries` by name, `shared` arrays as name -> (alignment, bytes; 0 for the dynamic one)."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        text = re.sub(r"//[^\n]*", "", text)
        text = re.split(r"^\s*\.section", text, flags=re.MULTILINE)[0]  # debug information
        shared = r"\.shared\s+\.align\s+(\d+)\s+\.[busf](\d+)\s+([\w$]+)(\[(\d*)\])?"
        self.shared = {
            name: (int(align), int(bits) // 8 * (int(count or 0) if brackets else 1))
            for align, bits, name, brackets, count in re.findall(shared, text)
        }
        self.entries = {}
        for found in re.finditer(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", text, re.DOTALL):
            body = text[found.end() : _closing_brace(text, found.end())]
            self.entries[found[1]] = Entry(_params(found[2]), *_body(body), _local(body))
        if not self.entries:
            raise PtxError("no .entry in the text")


def _closing_brace(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _params(text: str) -> dict[str, tuple[int, int]]:
    params: dict[str, tuple[int, int]] = {}
    offset = 0
    for one in text.split(","):
        found = re.search(r"\.[busf](\d+)(?:\s+\.ptr[^%]*?)?\s+([\w$]+)(?:\[(\d+)\])?\s*$", one.strip())
        if found is None:
            continue
        size = int(found[1]) // 8
        align = re.search(r"\.align (\d+)", one) if found[3] else None
        step = int(align[1]) if align else size
        offset = -(-offset // step) * step
        params[found[2]] = (offset, size * int(found[3] or 1))
        offset += size * int(found[3] or 1)
    return params


def _local(body: str) -> dict[str, tuple[int, int]]:
    arrays: dict[str, tuple[int, int]] = {}
    offset = 0
    for align, name, size in re.findall(r"\.local\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]", body):
        offset = -(-offset // int(align)) * int(align)
        arrays[name] = (offset, int(size))
        offset += int(size)
    return arrays


def _body(body: str) -> tuple[list[Instruction], dict[str, int]]:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in body.split(";"):
        rest = _strip_prefixes(statement, labels, len(instructions))
        if not rest or rest.startswith("."):  # a declaration
            continue
        rest = " ".join(rest.split())
        guard = None
        found = re.match(r"@(!?)(%\w+)\s+", rest)
        if found:
            guard = (found[2], bool(found[1]))
            rest = rest[found.end() :]
        op, _, operands = rest.partition(" ")
        args = [arg.strip() for arg in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", operands)]
        instructions.append(Instruction(guard, tuple(op.split(".")), tuple(arg for arg in args if arg), rest))
    return instructions, labels


def _strip_prefixes(statement: str, labels: dict[str, int], at: int) -> str:
    """Takes labels, braces and line directives off the front."""
    while True:
        statement = statement.strip().lstrip("{} \t\n")
        label = re.match(r"([\w$]+):\s*", statement)
        directive = re.match(r"\.(loc|file|pragma|branchtargets)\b[^\n]*\n?", statement)
        if label:
            labels[label[1]] = at
            statement = statement[label.end() :]
        elif directive:
            statement = statement[directive.end() :]
        else:
            return statement
