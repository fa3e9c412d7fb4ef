"""Compiles nanscan's Triton kernels ahead of time, without a GPU, and reads what came out: registers, spills, loads."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nanscan.record import DType
from nanscan.triton_kernels import kernels, launch

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
HEADS = {f"head{i}": "i64" for i in (0, 1, 2, 3, 15)}
SIGNATURES = {
    "scan_one": {"data": "*", "n": "i64", "blocks_per_chunk": "i64", "partials": "*i64", "out": "*i64", **HEADS},
    "fold_one": {"partials": "*i64", "n": "i64", "n_chunks": "i64", "out": "*i64", **HEADS},
    "scan_many": {"table": "*i64", "chunk_row": "*i32", "partials": "*i64", "n_partials": "i64", "records": "*i64"},
    "fold_many": {"table": "*i64", "fold_row": "*i32", "partials": "*i64", "n_partials": "i64", "records": "*i64"},
}
WORDS = {8: "*i64", 4: "*i32", 2: "*i16", 1: "*u8"}


@cache
def build(kernel: str, target: str, dtype: DType | None = None) -> Any:
    """The compiled kernel: .asm["ptx"], .asm["cubin"] or .asm["amdgcn"], .metadata.shared. dtype: of a scan."""
    form = launch.format_of(dtype) if dtype is not None else None
    signature = dict(SIGNATURES[kernel])
    if kernel == "scan_one":
        signature["data"] = WORDS[form.BYTES]
    constants: dict[str, Any] = {"LANES": launch.MAX_CHUNKS}
    if form is not None:
        constants = form._asdict()
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(fn=getattr(kernels, kernel), signature=signature, constexprs=constants)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": launch.NUM_WARPS})


class Sass(NamedTuple):
    """Of the machine code: registers and stack bytes per thread, how often each opcode occurs, the listing."""

    registers: int
    stack: int
    opcodes: Counter[str]
    text: str


def tool(name: str, *args: str) -> str:
    """A binary utility that the triton wheel carries."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *args], capture_output=True, text=True, check=True).stdout


def sass(cubin: Path) -> Sass:
    usage = dict(re.findall(r"\b(REG|STACK):(\d+)", tool("cuobjdump", "-res-usage", str(cubin))))
    text = tool("cuobjdump", "-sass", str(cubin))
    names = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", text, re.MULTILINE)
    return Sass(int(usage["REG"]), int(usage["STACK"]), Counter(names), text)
