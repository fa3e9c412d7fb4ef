"""What did nvcc make of the kernels? Registers, spills, bytes per load and instructions per element; no GPU needed.

Run: python benchmarks/bench_cuda_static.py [--quick]
Needs nvcc, and the cuobjdump in triton's wheel. Rows go to benchmarks/results/cuda_static.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
import rows

from nanscan import _build

# As the kernels' names have them, with the bytes of an element.
ELEMENTS = {
    "3F64ELi1": ("float64", 8),
    "3F32ELi1": ("float32", 4),
    "3F16ELi1": ("float16", 2),
    "4BF16ELi1": ("bfloat16", 2),
    "8F8E4M3FNELi1": ("float8_e4m3fn", 1),
    "6F8E5M2ELi1": ("float8_e5m2", 1),
    "F8FnuzILi4": ("float8_e4m3fnuz", 1),
    "F8FnuzILi5": ("float8_e5m2fnuz", 1),
    "3F32ELi2": ("complex64", 8),
    "3F64ELi2": ("complex128", 16),
}


def find_cuobjdump() -> str:
    spec = importlib.util.find_spec("triton")
    tool = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump" if spec and spec.origin else None
    if tool is None or not tool.is_file():
        sys.exit("bench_cuda_static: no cuobjdump; it comes with triton (pip install --no-deps triton)")
    return str(tool)


def usage(cuobjdump: str, library: Path, arch: str) -> dict[str, dict[str, int]]:
    """Kernel name -> registers, stack, shared and local bytes."""
    text = subprocess.run([cuobjdump, "-res-usage", "-arch", arch, str(library)], capture_output=True, text=True).stdout
    pattern = r"Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    names = ("registers", "stack_bytes", "shared_bytes", "local_bytes")
    return {found[0]: dict(zip(names, map(int, found[1:]), strict=True)) for found in re.findall(pattern, text)}


def instructions(cuobjdump: str, library: Path, arch: str) -> dict[str, list[str]]:
    """Kernel name -> its instructions."""
    text = subprocess.run([cuobjdump, "-sass", "-arch", arch, str(library)], capture_output=True, text=True).stdout
    functions = (part.partition("\n") for part in text.split("Function : ")[1:])
    return {name.strip(): re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", code) for name, _, code in functions}


def look(code: list[str], element_bytes: int) -> dict[str, float]:
    """The optimistic way of the main loop: from its four loads to the careful way's one, which comes next."""
    loads = [(i, int(m[1]) // 8) for i, line in enumerate(code) if (m := re.search(r"\bLDG\S*\.EF\S*?\.(\d+)\b", line))]
    start = next(k for k in range(len(loads) - 4) if loads[k + 3][0] - loads[k][0] < 24)
    length = loads[start + 4][0] - loads[start][0]
    n_bytes = sum(size for _, size in loads[start : start + 4])
    return {
        "bytes_per_load": n_bytes / 4,
        "loads_in_flight": 4,
        "instructions_per_element": round(length * element_bytes / n_bytes, 2),
        "spill_instructions": sum(bool(re.search(r"\b(LDL|STL)\b", line)) for line in code),
        "instructions": len(code),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="nothing written")
    args = parser.parse_args()
    cuobjdump = find_cuobjdump()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            library = _build.compile_cuda(_build.csrc_dir(), Path(folder), os.environ)
        except _build.BuildError as err:
            sys.exit(f"bench_cuda_static: {err}")
        build_s, size = time.perf_counter() - start, library.stat().st_size
        print(f"built in {build_s:.1f} s, {size / 1e6:.1f} MB")
        print(f"{'dtype':>16} {'arch':>7} registers spills bytes/load instructions/element instructions")
        done = []
        for cc in _build.CUDA_ARCHITECTURES:
            used, code = usage(cuobjdump, library, f"sm_{cc}"), instructions(cuobjdump, library, f"sm_{cc}")
            for key, (dtype, element_bytes) in ELEMENTS.items():
                (kernel,) = (name for name in used if key in name)
                row = {"benchmark": "cuda_static", "dtype": dtype, "arch": f"sm_{cc}", **used[kernel]}
                row |= look(code[kernel], element_bytes) | {"build_s": round(build_s, 1), "library_bytes": size}
                done.append(row)
                print(
                    f"{dtype:>16} {row['arch']:>7} {row['registers']:9} {row['spill_instructions']:6} "
                    f"{row['bytes_per_load']:10.0f} {row['instructions_per_element']:20} {row['instructions']:12}"
                )
    if not args.quick:
        print(f"rows added to {rows.append('cuda_static', done)}")


if __name__ == "__main__":
    main()
