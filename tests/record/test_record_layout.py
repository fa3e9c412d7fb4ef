"""nanscan/record.py mirrors csrc/record/record.h: every offset, every width, every enum value."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from nanscan.record import RECORD_BYTES, RECORD_DTYPE, DType, Flag, LinkCode, Phase

CSRC = Path(__file__).resolve().parents[2] / "csrc"
HEADER = CSRC / "record" / "record.h"


def members(text: str, enum: str) -> dict[str, int]:
    """Enumerators of an enum in the header, as written."""
    body = re.search(rf"enum (?:class )?{enum} : \w+ {{(.*?)}};", text, re.DOTALL)
    assert body, f"record.h has no enum {enum}"
    without_comments = re.sub(r"//.*", "", body[1])
    return {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", without_comments)}


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """field -> (offset, bytes), as the compiler sees them."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1":
            pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1 and no C++ compiler: {command[0]} is not on PATH; set CXX")
        pytest.skip(f"no C++ compiler: {command[0]} is not on PATH; set CXX")
    folder = tmp_path_factory.mktemp("layout")
    struct = re.search(r"struct Record {(.*?)\n};", HEADER.read_text(), re.DOTALL)
    fields = re.findall(r"^\s+\w+ (\w+);", struct[1], re.MULTILINE)
    lines = "".join(f'  print("{name}", offsetof(Record, {name}), sizeof(Record::{name}));\n' for name in fields)
    (folder / "layout.cpp").write_text(
        '#include "record/record.h"\n#include <cstdio>\nusing namespace nanscan;\n'
        'static void print(const char* n, size_t o, size_t s) { std::printf("%s %zu %zu\\n", n, o, s); }\n'
        f"int main() {{\n{lines}  return 0;\n}}\n"
    )
    program = folder / "layout"
    subprocess.run([*command, "-std=c++17", f"-I{CSRC}", str(folder / "layout.cpp"), "-o", str(program)], check=True)
    rows = (line.split() for line in subprocess.check_output([str(program)], text=True).splitlines())
    return {name: (int(offset), int(size)) for name, offset, size in rows}


def test_offsets_and_widths(layout):
    mirrored = {name: (int(offset), dtype.itemsize) for name, (dtype, offset) in RECORD_DTYPE.fields.items()}
    assert mirrored == layout


def test_no_gaps(layout):
    end = 0
    for name, (offset, size) in layout.items():
        assert offset == end, f"a gap before {name}"
        end += size
    assert end == RECORD_BYTES == RECORD_DTYPE.itemsize == 128


def test_signs_and_kinds():
    signed = {name for name in RECORD_DTYPE.names if RECORD_DTYPE[name].kind == "i"}
    floats = {name for name in RECORD_DTYPE.names if RECORD_DTYPE[name].kind == "f"}
    assert (signed, floats) == ({"first_bad", "device"}, {"min", "max", "mean", "m2"})


@pytest.mark.parametrize(
    ("enum", "prefix", "mirror"),
    [("DType", "k", DType), ("Phase", "kPhase", Phase), ("Flag", "kFlag", Flag), ("Link", "kLink", LinkCode)],
    ids=["DType", "Phase", "Flag", "LinkCode"],
)
def test_enums(enum, prefix, mirror):
    def plain(name: str) -> str:
        return name.removeprefix(prefix).replace("_", "").upper()

    header = {plain(name): value for name, value in members(HEADER.read_text(), enum).items()}
    assert {plain(member.name): int(member) for member in mirror} == header
