"""Ahead-of-time compilation of the Triton kernels, and what the machine code says about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanscan.record import DType
from nanscan_triton_tests.sass import main_loop

# 128 registers leave room for four blocks of 128 threads per SM: 32 KiB in flight at 64 bytes per thread.
MAX_REGISTERS = 128
SCANS = [
    *(("sm_90", dtype) for dtype in DType if dtype != DType.UNKNOWN),
    *((target, dtype) for target in ("sm_80", "sm_100") for dtype in (DType.F32, DType.BF16, DType.F8_E4M3FN)),
]


@pytest.fixture
def aot(triton):
    from nanscan_triton_tests import aot

    return aot


@pytest.fixture
def code(aot, tmp_path: Path):
    """code(kernel, target, dtype) -> its machine code, which does not spill."""

    def look(kernel: str, target: str, dtype: DType | None):
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(aot.build(kernel, target, dtype).asm["cubin"])
        found = aot.sass(cubin)
        spills = sum(n for op, n in found.opcodes.items() if op.startswith(("STL", "LDL")))
        # The ptxas of Triton 3.6 parks one value of scan_many outside the loop rather than take an 81st register
        pinned = tuple(map(int, aot.triton.__version__.split(".")[:2])) >= (3, 8)
        assert spills <= (0 if pinned else 2), kernel
        assert found.stack <= 16  # the frame of the division routine
        return found

    return look


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype"), [pytest.param(*one, id=f"{one[0]}-{one[1].name}") for one in SCANS])
def test_scan(code, target: str, dtype: DType) -> None:
    scan = code("scan_one", target, dtype)
    assert scan.registers <= MAX_REGISTERS
    check_loop(scan.text, 2 if dtype.name.startswith("F8") else 4)


def check_loop(text: str, n_loads: int) -> None:
    """As many 16-byte loads as one iteration has in flight, and nothing that leaves the thread."""
    loop = main_loop(text)
    assert [op for op in loop if op.startswith("LDG")] == ["LDG.E.EF.128"] * n_loads
    others = ("SHFL", "BAR", "LDS", "STS", "LDL", "STL", "ATOM", "RED")
    assert [op for op in loop if op.startswith(others)] == []


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_many_and_folds(code, target: str) -> None:
    scan = code("scan_many", target, DType.BF16)
    assert scan.registers <= MAX_REGISTERS
    check_loop(scan.text, 4)  # alignment is worked out on the device: the table holds tensors of any
    code("fold_one", target, None)
    code("fold_many", target, None)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F8_E4M3FNUZ], ids=lambda dtype: dtype.name)
def test_amd(aot, dtype: DType) -> None:
    text = aot.build("scan_one", "gfx942", dtype).asm["amdgcn"]
    spills = {name: int(count) for name, count in re.findall(r"\.(\w+_spill_count):\s+(\d+)", text)}
    assert spills == {"sgpr_spill_count": 0, "vgpr_spill_count": 0}
    assert re.search(r"(?:buffer|global)_load_dwordx4", text)
    aot.build("fold_one", "gfx942", None)
