"""nanscan/origin/op_calls.py mirrors csrc/record/call_record.h: every offset, every width, every enum value."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from nanscan.origin.op_calls import CALL_DTYPE, MAX_CALL_INPUTS, CallBit, CallKind, Detail, Holds
from nanscan.record import RECORD_BYTES

CSRC = Path(__file__).resolve().parents[2] / "csrc"
HEADER = CSRC / "record" / "call_record.h"


def members(enum: str) -> dict[str, int]:
    body = re.search(rf"enum {enum} : \w+ {{(.*?)}};", HEADER.read_text(), re.DOTALL)
    assert body, f"call_record.h has no enum {enum}"
    return {
        name: int(value, 0) for name, value in re.findall(r"(\w+) = (0x[0-9A-F]+|\d+)", re.sub(r"//.*", "", body[1]))
    }


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """field -> (offset, bytes), as the compiler sees them."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1":
            pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1 and no C++ compiler: {command[0]} is not on PATH; set CXX")
        pytest.skip(f"no C++ compiler: {command[0]} is not on PATH; set CXX")
    folder = tmp_path_factory.mktemp("layout")
    struct = re.search(r"struct CallRecord {(.*?)\n};", HEADER.read_text(), re.DOTALL)
    fields = re.findall(r"^\s+\w+ (\w+)(?:\[\w+\])?;", struct[1], re.MULTILINE)
    row = '  std::printf("{0} %zu %zu\\n", offsetof(CallRecord, {0}), sizeof(CallRecord::{0}));\n'
    (folder / "layout.cpp").write_text(
        '#include "record/call_record.h"\n#include <cstdio>\nusing namespace nanscan;\n'
        f"int main() {{\n{''.join(row.format(name) for name in fields)}  return 0;\n}}\n"
    )
    program = folder / "layout"
    subprocess.run([*command, "-std=c++17", f"-I{CSRC}", str(folder / "layout.cpp"), "-o", str(program)], check=True)
    rows = (line.split() for line in subprocess.check_output([str(program)], text=True).splitlines())
    return {name.rstrip("_"): (int(offset), int(size)) for name, offset, size in rows}


def test_offsets_and_widths(layout):
    mirrored = {name: (int(offset), dtype.itemsize) for name, (dtype, offset) in CALL_DTYPE.fields.items()}
    assert mirrored == layout


def test_no_gaps(layout):
    end = 0
    for name, (offset, size) in layout.items():
        assert offset == end, f"a gap before {name}"
        end += size
    assert end == RECORD_BYTES


@pytest.mark.parametrize(
    ("enum", "prefix", "mirror"),
    [
        ("CallKind", "kCall", CallKind),
        ("CallBit", "kCall", CallBit),
        ("ValueBit", "k(?:Has|Value)", Holds),
        ("Detail", "kDetail", Detail),
    ],
)
def test_enums(enum, prefix, mirror):
    def plain(name: str) -> str:
        return re.sub(f"^{prefix}", "", name).replace("_", "").upper()

    renamed = {"POSINF": "POS", "NEGINF": "NEG"}
    header = {renamed.get(plain(name), plain(name)): value for name, value in members(enum).items()}
    assert {plain(member.name): int(member) for member in mirror} == header


def test_room_for_inputs():
    assert f"kMaxCallInputs = {MAX_CALL_INPUTS};" in HEADER.read_text()
