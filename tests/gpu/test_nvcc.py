"""What nvcc makes of the source: no spilled register, 16-byte loads, a library that loads where there is no driver."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanscan import _build

ARCHITECTURES = [f"sm_{cc}" for cc in _build.CUDA_ARCHITECTURES]
N_ELEMENT_TYPES = 10
# Per thread. Above, fewer blocks fit on an SM than kBlocksPerSm asks for: 65536 / (256 * 3) and / (256 * 2).
MAX_REGISTERS = {"narrow": 80, "wide": 128}


@pytest.fixture(scope="module")
def cuobjdump() -> str:
    """The disassembler that triton's wheel brings; CUDA's compiler packages often lack it."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        pytest.skip("no triton, which brings cuobjdump (pip install --no-deps triton==3.8.0)")
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        pytest.skip(f"this triton brings no cuobjdump: {tool}")
    return str(tool)


def ask(cuobjdump: str, library: Path, *flags: str) -> str:
    return subprocess.run([cuobjdump, *flags, str(library)], capture_output=True, text=True, check=True).stdout


def is_wide(kernel: str) -> bool:
    return "3F64" in kernel


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_registers_stack_and_shared_memory(cuobjdump, cuda_library, arch):
    text = ask(cuobjdump, cuda_library, "-res-usage", "-arch", arch)
    usage = re.findall(r"Function (\S*scan\S*):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert len(usage) == N_ELEMENT_TYPES
    for kernel, registers, stack, shared, local in usage:
        assert (int(stack), int(local)) == (0, 0), kernel
        assert int(registers) <= MAX_REGISTERS["wide" if is_wide(kernel) else "narrow"], kernel
        assert int(shared) <= 4096, kernel


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_instructions(cuobjdump, cuda_library, arch):
    functions = ask(cuobjdump, cuda_library, "-sass", "-arch", arch).split("Function : ")[1:]
    assert len(functions) == N_ELEMENT_TYPES
    for text in functions:
        kernel, _, _ = text.partition("\n")
        code = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", text)
        assert not [line for line in code if re.search(r"\b(LDL|STL)\b", line)], f"{kernel}: local memory"
        loads = [i for i, line in enumerate(code) if re.search(r"\bLDG\S*\.128\b", line)]
        runs = [i for i in loads if sum(i <= j < i + 24 for j in loads) >= 4]
        assert runs, f"{kernel}: no four 16-byte loads in flight, but at {loads}"
        assert any("FENCE" in line or "MEMBAR" in line for line in code), f"{kernel}: no fence"


def test_it_has_code_for_every_architecture_and_ptx_for_later_ones(cuobjdump, cuda_library):
    found = set(re.findall(r"\.(sm_\d+)\.cubin", ask(cuobjdump, cuda_library, "-lelf")))
    assert found == set(ARCHITECTURES)
    assert set(re.findall(r"\.(sm_\d+)\.ptx", ask(cuobjdump, cuda_library, "-lptx"))) == {ARCHITECTURES[-1]}


# In a process of its own: on a machine with a GPU this would make a context.
NO_DRIVER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.nanscan_cuda_error.restype = ctypes.c_char_p
ring = ctypes.c_void_p()
code = library.nanscan_cuda_open(0, 64, ctypes.byref(ring))
print(code, ring.value, library.nanscan_cuda_abi(), library.nanscan_cuda_error(code).decode())
"""


def test_without_a_driver_it_says_so(cuda_library):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver here")
    done = subprocess.run([sys.executable, "-c", NO_DRIVER, str(cuda_library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "35 None 1 CUDA driver version is insufficient for CUDA runtime version\n"


def test_it_needs_nothing_of_cuda_to_load(cuda_library):
    needed = subprocess.run(["ldd", str(cuda_library)], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed.replace(str(cuda_library), "")
    assert "torch" not in needed


def test_only_the_entry_points_are_visible(cuda_library):
    listed = subprocess.run(["nm", "-D", "--defined-only", str(cuda_library)], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"nm: {listed.stderr}")
    header = (Path(__file__).parents[2] / "csrc" / "scan" / "scan_cuda.h").read_text()
    declared = set(re.findall(r"NANSCAN_CUDA_API .*?(nanscan_cuda_\w+)\(", header))
    found = set(re.findall(r"\bT (\w+)", listed.stdout))
    assert declared <= found
    assert not [name for name in found if "nanscan" in name and name not in declared]
