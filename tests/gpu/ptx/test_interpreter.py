"""The PTX interpreter itself: right where a GPU would be, loud about planted mistakes and about what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest

from nanscan_ptx.block import UnknownInstruction
from nanscan_ptx.interpreter import launch
from nanscan_ptx.memory import GlobalMemory
from nanscan_ptx.parse import Module, PtxError

THREADS = 64

# The sum of n integers: shuffles within a warp, shared memory between the two warps, an atomic between blocks.
BLOCK_SUM = """
.visible .entry block_sum(.param .u64 .ptr .global .align 4 data, .param .u32 n, .param .u64 out)
{
  .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<9>;
  .shared .align 4 .b8 partial[8];
  ld.param.b64 %rd1, [data];  ld.param.b32 %r1, [n];  ld.param.b64 %rd2, [out];
  mov.u32 %r2, %tid.x;  mov.u32 %r3, %ctaid.x;  mad.lo.s32 %r4, %r3, 64, %r2;
  mov.b32 %r10, 0;
  setp.ge.s32 %p1, %r4, %r1;
  @%p1 bra $sum;
  mul.wide.s32 %rd3, %r4, 4;  add.s64 %rd4, %rd1, %rd3;
  ld.global.b32 %r10, [%rd4];
$sum:
  shfl.sync.bfly.b32 %r11, %r10, 16, 31, -1;  add.s32 %r10, %r10, %r11;
  shfl.sync.bfly.b32 %r11, %r10, 8, 31, -1;   add.s32 %r10, %r10, %r11;
  shfl.sync.bfly.b32 %r11, %r10, 4, 31, -1;   add.s32 %r10, %r10, %r11;
  shfl.sync.bfly.b32 %r11, %r10, 2, 31, -1;   add.s32 %r10, %r10, %r11;
  shfl.sync.bfly.b32 %r11, %r10, 1, 31, -1;   add.s32 %r10, %r10, %r11;
  shr.u32 %r5, %r2, 5;  and.b32 %r6, %r2, 31;  shl.b32 %r7, %r5, 2;
  mov.b32 %r8, partial;  add.s32 %r9, %r8, %r7;
  setp.eq.s32 %p2, %r6, 0;
  @%p2 st.shared.b32 [%r9], %r10;
  bar.sync 0;
  setp.ne.s32 %p3, %r2, 0;
  @%p3 bra $done;
  ld.shared.b32 %r12, [partial];  ld.shared.b32 %r13, [partial+4];  add.s32 %r14, %r12, %r13;
  red.global.add.u32 [%rd2], %r14;
$done:
  ret;
}
"""


def block_sum(ptx: str, n: int) -> int:
    memory = GlobalMemory()
    out = np.zeros(1, np.uint32)
    args = [memory.add(np.arange(n, dtype=np.int32)), n, memory.add(out)]
    launch(Module(ptx), "block_sum", (-(-n // THREADS), 1, 1), THREADS, args, memory)
    return int(out[0])


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_block_sum(n: int) -> None:
    assert block_sum(BLOCK_SUM, n) == n * (n - 1) // 2


SHUFFLE = "@%p2 shfl.sync.bfly.b32 %r11, %r10, 1, 31"
TWO_BARRIERS = "@%p2 bra $b; bar.sync 0; bra $c; $b: bar.sync 0; $c:"
READ_MODIFY_WRITE = "ld.global.b32 %r15, [%rd2]; add.s32 %r15, %r15, %r14; st.global.b32 [%rd2], %r15;"
TWO_WAYS = "@%p2 bra $far; $bar: bar.sync 0; bra $on; $far: mov.b32 %r20, 0; bra $bar; $on:"
MISTAKES = {  # name: (text, its replacement, what is reported)
    "missing-barrier": ("bar.sync 0;", "", "shared-memory race"),
    "plain-read-modify-write": ("red.global.add.u32 [%rd2], %r14;", READ_MODIFY_WRITE, "stores by two threads"),
    "tail-off-by-one": ("setp.ge.s32 %p1", "setp.gt.s32 %p1", "out-of-bounds global load"),
    "shared-overflow": ("shl.b32 %r7, %r5, 2;", "shl.b32 %r7, %r5, 3;", "shared store out of bounds"),
    "two-warps-one-place": ("shl.b32 %r7, %r5, 2;", "mov.b32 %r7, 0;", "shared-memory race"),
    "lanes-store-the-same": ("@%p2 st.shared", "st.shared", None),
    "lanes-differ": ("@%p2 st.shared.b32 [%r9], %r10", "st.shared.b32 [%r9], %r2", "two lanes of warp"),
    "shared-overrun": ("[partial+4]", "[partial+8]", "shared load out of bounds"),
    "never-written": ("@%p2 st.shared", "@%p1 st.shared", "uninitialised shared memory"),
    "misaligned": ("[partial+4]", "[partial+2]", "misaligned shared load"),
    "divergent-barrier": ("@%p3 bra $done;", "@%p3 bra $done; bar.sync 0;", "have left without"),
    "two-ways-to-one-barrier": ("bar.sync 0;", TWO_WAYS, None),
    "two-barriers": ("bar.sync 0;", TWO_BARRIERS, "different barriers"),
    "full-mask-shuffle": ("@%p2 st.shared", f"{SHUFFLE}, -1; @%p2 st.shared", "lanes 0xfffffffe"),
    "shuffle-from-nobody": ("@%p2 st.shared", f"{SHUFFLE}, 1; @%p2 st.shared", "reads a lane that is not here"),
    "endless": ("bar.sync 0;", "bar.sync 0; $again: bra $again;", "no end after"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_reported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    old, new, message = MISTAKES[name]
    monkeypatch.setattr("nanscan_ptx.block.MAX_STEPS", 10_000)
    assert BLOCK_SUM.count(old) == 1
    ptx = BLOCK_SUM.replace(old, new)
    if message is None:
        assert block_sum(ptx, 100) == 4950
        return
    with pytest.raises(PtxError, match=message):
        block_sum(ptx, 100)


@pytest.mark.parametrize(
    "instruction",
    [
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 %r1, %r2, %r3, %r4;",
        "frobnicate.b32 %r1, %r2;",
        "add.cc.u32 %r1, %r2, %r3;",
        "bar.sync 1;",
        "bar.sync 0, 32;",
        "cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;",
        "mov.u32 %r1, %clock;",
        "ld.global.b32 %r1, [nowhere];",
    ],
)
def test_an_unknown_instruction_is_loud(instruction: str) -> None:
    ptx = f".visible .entry one()\n{{\n{instruction}\nret;\n}}"
    with pytest.raises(UnknownInstruction, match=r" at: "):
        launch(Module(ptx), "one", (1, 1, 1), 32, [], GlobalMemory())


def compute(instructions: str, a: np.ndarray, b: np.ndarray, dtype: type = np.uint32) -> np.ndarray:
    """Runs instructions with a and b in %a and %b (%r: 32 bits, %d: 64 bits); what they leave in %r or %d."""
    bits = np.dtype(dtype).itemsize * 8
    width = a.dtype.itemsize
    ptx = f"""
    .visible .entry one(.param .u64 a, .param .u64 b, .param .u64 to)
    {{
      ld.param.b64 %A, [a]; ld.param.b64 %B, [b]; ld.param.b64 %TO, [to]; mov.u32 %t, %tid.x;
      mul.wide.u32 %off, %t, {width}; add.s64 %A, %A, %off; add.s64 %B, %B, %off;
      ld.global.b{8 * width} %a, [%A]; ld.global.b{8 * width} %b, [%B];
      {instructions}
      mul.wide.u32 %off, %t, {bits // 8}; add.s64 %TO, %TO, %off;
      st.global.b{bits} [%TO], %r;
      ret;
    }}"""
    memory = GlobalMemory()
    out = np.zeros(len(a), dtype)
    launch(Module(ptx), "one", (1, 1, 1), len(a), [memory.add(a), memory.add(b), memory.add(out)], memory)
    return out


RANDOM = np.random.default_rng(0)
INTS = RANDOM.integers(0, 2**32, (2, 32), dtype=np.uint32)
FLOATS = RANDOM.integers(0, 2**32, (2, 32), dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("add.u32 %r, %a, %b;", lambda a, b: a + b),
        ("mul.hi.u32 %r, %a, %b;", lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
        ("mul.wide.u32 %w, %a, %b; shr.u64 %r, %w, 32;", lambda a, b: (a.astype(np.uint64) * b) >> np.uint64(32)),
        ("shr.s32 %r, %a, 40;", lambda a, b: (a.view(np.int32) >> 31).view(np.uint32)),
        ("shl.b32 %r, %a, 33;", lambda a, b: a * 0),
        ("shf.l.wrap.b32 %r, %a, %b, 8;", lambda a, b: (b << np.uint32(8)) | (a >> np.uint32(24))),
        ("prmt.b32 %r, %a, %b, 0x5410;", lambda a, b: (a & np.uint32(0xFFFF)) | (b << np.uint32(16))),
        ("lop3.b32 %r, %a, %b, %b, 0x3c;", lambda a, b: a ^ b),
        ("popc.b32 %r, %a;", lambda a, b: np.bitwise_count(a).astype(np.uint32)),
        ("bfe.u32 %r, %a, 4, 8;", lambda a, b: a >> np.uint32(4) & np.uint32(255)),
        ("setp.lt.s32 %p, %a, %b; selp.b32 %r, 1, 0, %p;", lambda a, b: a.view(np.int32) < b.view(np.int32)),
        ("setp.lo.u32 %p, %a, %b; selp.b32 %r, 1, 0, %p;", lambda a, b: a < b),
        ("div.s32 %r, %a, 7;", lambda a, b: np.trunc(a.view(np.int32) / 7).astype(np.int32).view(np.uint32)),
        ("mov.b32 {%x, %y}, %a; mov.b32 %r, {%y, %x};", lambda a, b: (a << np.uint32(16)) | (a >> np.uint32(16))),
        ("cvt.s32.s8 %r, %a;", lambda a, b: a.astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32)),
    ],
)
def test_integers(instructions, expected) -> None:
    np.testing.assert_array_equal(compute(instructions, *INTS), expected(*INTS).astype(np.uint32))


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("add.f32 %r, %a, %b;", lambda a, b: a + b),
        ("min.f32 %r, %a, %b;", np.fmin),
        ("max.NaN.f32 %r, %a, %b;", np.maximum),
        ("fma.rn.f32 %r, %a, %b, %a;", lambda a, b: (a.astype(float) * b + a).astype(np.float32)),
        ("setp.ltu.f32 %p, %a, %b; selp.f32 %r, %a, %b, %p;", lambda a, b: np.where(~(a >= b), a, b)),
        ("setp.nan.f32 %p, %a, %a; selp.f32 %r, %b, %a, %p;", lambda a, b: np.where(np.isnan(a), b, a)),
        ("cvt.f64.f32 %d, %a; cvt.rn.f32.f64 %r, %d;", lambda a, b: a),
    ],
)
def test_floats(instructions, expected) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute(instructions, *FLOATS, dtype=np.float32), expected(*FLOATS))


def test_every_nan_is_the_same() -> None:
    nans = np.array([0x7F800001, 0xFFC00000, 0xFFFFFFFF, 0x7FC00000] * 8, np.uint32)
    assert set(compute("add.f32 %r, %a, %b;", nans, nans[::-1].copy()).tolist()) == {0x7FFFFFFF}


def test_small_formats() -> None:
    halves = np.arange(0, 2**16, 2048, dtype=np.uint32)
    widened = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(compute("cvt.f32.f16 %r, %a;", halves, halves, np.float32), widened)
    codes = np.arange(0, 256, 8, dtype=np.uint32)
    found = compute("cvt.rn.f16x2.e5m2x2 %r, %a;", codes, codes)
    np.testing.assert_array_equal(found & 0xFFFF, codes << 8)


def test_only_chosen_blocks_run() -> None:
    out = np.zeros(1, np.uint32)
    memory = GlobalMemory()
    args = [memory.add(np.ones(200, np.int32)), 200, memory.add(out)]
    counts = launch(Module(BLOCK_SUM), "block_sum", (4, 1, 1), THREADS, args, memory, blocks=[(3, 0, 0)])
    assert int(out[0]) == 200 - 3 * 64
    assert counts["bar.sync"] == 1
