"""The floor rule as a program: imports and includes go down, and the write side never meets the read side.

Pure functions from a repository folder to a list of complaints, so that planted violations can test them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Areas of the Python package. An area is a module or folder directly under nanscan/; "" is nanscan/__init__.py.
PYTHON_FLOORS = {
    **dict.fromkeys(("record", "sites", "config", "errors", "_build", "_version"), 0),
    **dict.fromkeys(("_C", "backends", "triton_kernels"), 1),
    "buffer": 2,
    **dict.fromkeys(("hooks", "events"), 3),
    **dict.fromkeys(("origin", "why", "health"), 4),
    "report": 5,
    "scanner": 6,
    **dict.fromkeys(("cli", "integrations", "", "__main__"), 7),
}
# They meet in the record and the site table only. hooks is the write side.
READ_SIDE = {"events", "origin", "why", "health", "report"}
APART = {"hooks": READ_SIDE, **{area: {"hooks"} for area in READ_SIDE}}

CSRC_FLOORS = {"record": 0, "scan": 1, "buffer": 2, "hooks": 3, "bindings.cpp": 4}
TORCH_FREE = {"record", "scan", "buffer"}  # kernels know pointers, not tensors
TORCH_ALLOWED = re.compile(r"scan/scan\.(h|cpp)|(\w+/)+\w+_bindings\.(h|cpp)")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

MAX_LINES = 400
SAYS_WHY = re.compile(r"\blong\b", re.IGNORECASE)
CODE = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh"}
CODE_FOLDERS = ("nanscan", "csrc", "triton_kernels", "tests", "benchmarks", "examples")


@dataclass(frozen=True)
class Import:
    """One import of a nanscan module: the module's dotted name, and where it stands."""

    target: str
    line: int


def check_python(root: Path) -> list[str]:
    """Complaints about imports under nanscan/ (and triton_kernels/, which is installed as part of it)."""
    complaints = []
    for path in _python_files(root):
        name = _module_name(root, path)
        area = _area(name)
        if area not in PYTHON_FLOORS:
            complaints.append(f"{_place(root, path)}: nanscan.{area} stands on no floor; add it to PYTHON_FLOORS")
            continue
        for found in _imports(root, path, name):
            other = _area(found.target)
            place = f"{_place(root, path, found.line)}: {name} imports {found.target}"
            if other not in PYTHON_FLOORS:
                complaints.append(f"{place}, which stands on no floor")
            elif PYTHON_FLOORS[other] > PYTHON_FLOORS[area]:
                complaints.append(f"{place}: up from floor {PYTHON_FLOORS[area]} to floor {PYTHON_FLOORS[other]}")
            elif other in APART.get(area, ()):
                complaints.append(f"{place}: the write side and the read side never import each other")
    return complaints


def check_csrc(root: Path) -> list[str]:
    """Complaints about #includes under csrc/."""
    csrc = root / "csrc"
    complaints = []
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in CODE):
        area = path.relative_to(csrc).parts[0]
        if area not in CSRC_FLOORS:
            complaints.append(f"{_place(root, path)}: csrc/{area} stands on no floor; add it to CSRC_FLOORS")
            continue
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            header = match.group(2)
            place = f"{_place(root, path, text.count(chr(10), 0, match.start(1)) + 1)}: includes {header}"
            if TORCH_HEADER.match(header):
                if area in TORCH_FREE and not TORCH_ALLOWED.fullmatch(path.relative_to(csrc).as_posix()):
                    complaints.append(f"{place}: no torch header here (only scan.h, scan.cpp and *_bindings)")
                continue
            other = _included_area(csrc, path, header)
            if other is None:
                if match.group(1) == '"':
                    complaints.append(f"{place}, which is not under csrc/ (quotes are for our own headers)")
            elif other not in CSRC_FLOORS:
                complaints.append(f"{place}, which stands on no floor")
            elif CSRC_FLOORS[other] > CSRC_FLOORS[area]:
                complaints.append(f"{place}: up from floor {CSRC_FLOORS[area]} to floor {CSRC_FLOORS[other]}")
    return complaints


def check_lengths(root: Path) -> list[str]:
    """Files above MAX_LINES whose first line does not say why they are long. The case corpus stays as written."""
    complaints = []
    for path in (p for folder in CODE_FOLDERS for p in sorted((root / folder).rglob("*")) if p.suffix in CODE):
        if path.is_relative_to(root / "tests" / "cases"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES and not SAYS_WHY.search(lines[0]):
            complaints.append(f"{_place(root, path)}: {len(lines)} lines; split it, or say in line 1 why it is long")
    return complaints


def _python_files(root: Path) -> Iterator[Path]:
    for folder in ("nanscan", "triton_kernels"):
        yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in (".py", ".pyi"))


def _module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "triton_kernels":
        parts = ("nanscan", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _area(module: str) -> str:
    return [*module.split("."), ""][1]


def _imports(root: Path, path: Path, name: str) -> Iterator[Import]:
    """Every import of nanscan in the file, those inside functions and under TYPE_CHECKING included."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "nanscan":
                    yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base == "nanscan":  # `from nanscan import sites` is about nanscan.sites
                for alias in node.names:
                    yield Import(f"nanscan.{alias.name}" if _is_area(root, alias.name) else "nanscan", node.lineno)
            elif base.startswith("nanscan."):
                yield Import(base, node.lineno)


def _is_area(root: Path, name: str) -> bool:
    package = root / "nanscan"
    return name in PYTHON_FLOORS or (package / name).is_dir() or (package / f"{name}.py").is_file()


def _included_area(csrc: Path, path: Path, header: str) -> str | None:
    for base in (path.parent, csrc):  # the compiler's order for quotes
        target = Path(base, header)
        if target.is_file() and target.resolve().is_relative_to(csrc.resolve()):
            return target.resolve().relative_to(csrc.resolve()).parts[0]
    return None


def _place(root: Path, path: Path, line: int | None = None) -> str:
    return path.relative_to(root).as_posix() + (f":{line}" if line else "")
