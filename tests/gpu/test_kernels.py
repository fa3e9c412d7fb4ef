"""The CUDA source run on the host, every thread a fiber: each record against numpy, under each sanitizer."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nanscan.record import DType

REAL = [d for d in DType if d not in (DType.UNKNOWN, DType.C64, DType.C128)]
ALL = [*REAL, DType.C64, DType.C128]
WIDE = (DType.F64, DType.C128)
names = {"ids": lambda value: value.name if isinstance(value, DType) else str(value)}

# Mean in std, std relative. Sums of a group run in float lanes for the narrow formats, all else in double.
TOLERANCE = dict.fromkeys(ALL, 1e-6) | dict.fromkeys(WIDE, 1e-12)
VECTORS_OF_A_BLOCK = 64 * 4 * 2  # threads, vectors in flight, rounds: see plan_blocks
FEW = (DType.F64, DType.F32, DType.C64)  # what the driver for tsan has: see build.FEW


def sizes(dtype: DType, oracle) -> list[int]:
    """Around one vector, one round of a block's threads, and one block; none, one, and several blocks."""
    vector = 128 // (oracle.FORMATS[dtype].bits * oracle.n_parts(dtype))
    block = VECTORS_OF_A_BLOCK * vector
    return [
        0,
        1,
        vector - 1,
        vector,
        vector + 1,
        64 * vector + 1,
        block // 2,
        block - 1,
        block,
        block + 1,
        2 * block + 3,
    ]


def check(outcome, steps, oracle) -> None:
    """Every record of the outcome says what its tensor holds."""
    wrong = []
    for record in outcome.records["record"]:
        tensor = steps.tensors[record["site"]]
        found = oracle.complaints(record, tensor, TOLERANCE[tensor.dtype])
        wrong += [f"{tensor.dtype.name} {tensor.sizes} {tensor.strides}: {complaint}" for complaint in found]
    assert not wrong, "\n".join(wrong[:20])


def scan_all(script, tensors, *, many: bool = False, seed: int = 1):
    """Steps that scan each tensor, all in one table or one by one on three streams, and poll."""
    steps = script.Script().open()
    ids = [steps.tensor(t) for t in tensors]
    if many:
        steps.many(*ids)
    else:
        for i in ids:
            steps.scan(i, stream=i % 3)
    return steps.run(seed).poll()


@pytest.mark.parametrize("sanitizer", ["plain", "asan-ubsan", "tsan"])
def test_every_dtype_with_many_special_values(oracle, script, execute, sanitizer):
    """Sizes around vectors, rounds and blocks, starts at and off 16-byte boundaries, 40 % special values."""
    rng = np.random.default_rng(0)
    tensors = []
    for dtype in FEW if sanitizer == "tsan" else ALL:
        part_bytes = oracle.FORMATS[dtype].bits // 8
        chosen = sizes(dtype, oracle)[:: 1 if sanitizer == "plain" else 3]
        for k, n in enumerate(chosen):
            bits = oracle.random_bits(rng, dtype, n)
            tensors.append(oracle.contiguous(dtype, bits, misalign=k % 3 * part_bytes % 16))
    for many in (False, True):
        steps = scan_all(script, tensors, many=many)
        outcome = execute(steps, sanitizer)
        assert len(outcome.records) == len(tensors)
        check(outcome, steps, oracle)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_the_schedule_changes_nothing(oracle, script, execute, seed):
    rng = np.random.default_rng(1)
    tensors = [oracle.contiguous(d, oracle.random_bits(rng, d, 9000)) for d in (DType.F32, DType.F64, DType.C64)]
    outcome = execute(scan_all(script, tensors, many=True, seed=seed))
    by_site = np.sort(outcome.records["record"], order="site")
    other = np.sort(execute(scan_all(script, tensors, many=True, seed=99)).records["record"], order="site")
    assert by_site.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.F8_E4M3FN], **names)
def test_ordinary_values_take_the_fast_way(oracle, script, execute, dtype):
    """No special values: what is summed is summed optimistically; zeros are half of a relu's output."""
    rng = np.random.default_rng(2)
    plain, relu = oracle.random_bits(rng, dtype, 6000, 0.0), oracle.random_bits(rng, dtype, 6000, 0.0)
    relu[oracle.FORMATS[dtype].negative(relu)] = 0
    steps = scan_all(script, [oracle.contiguous(dtype, plain), oracle.contiguous(dtype, relu)])
    check(execute(steps), steps, oracle)


@pytest.mark.parametrize(
    ("mean", "std"),
    [(1e4, 1.0), (-1e4, 1.0), (1e30, 1e28), (1e-30, 1e-32), (0.0, 1e-25), (0.0, 1e25), (1e6, 0.0)],
    ids=str,
)
def test_shifted_and_scaled_data(oracle, script, execute, mean, std):
    """Far from zero sums of squares cancel, far from one they leave float's range."""
    rng = np.random.default_rng(3)
    values = mean + std * rng.standard_normal(5000)
    tensors = [oracle.contiguous(d, oracle.nearest(d, values)) for d in (DType.F32, DType.F64)]
    steps = scan_all(script, tensors)
    check(execute(steps), steps, oracle)


def test_float64_to_its_ends(oracle, script, execute):
    """Sums that overflow in double: the mean is right, m2 infinite and never NaN."""
    big = np.float64(1.7e308)
    cases = [[big] * 40, [big, -big] * 20, [big, 0.0, 1.0] * 13, [1e160] * 3 + [0.0] * 30, [5e-324] * 33, [-big, big]]
    tensors = [oracle.contiguous(DType.F64, oracle.nearest(DType.F64, np.array(case))) for case in cases]
    steps = scan_all(script, tensors)
    outcome = execute(steps)
    assert not np.isnan(outcome.records["record"]["m2"]).any()
    check(outcome, steps, oracle)


@pytest.mark.parametrize("dtype", [DType.F8_E4M3FN, DType.F8_E5M2, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ], **names)
def test_every_code_of_one_byte(oracle, script, execute, dtype):
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[~oracle.FORMATS[dtype].is_nan(codes) & ~oracle.FORMATS[dtype].is_inf(codes)]
    tensors = [oracle.contiguous(dtype, np.tile(some, 40)) for some in (codes, finite)]
    tensors += [oracle.contiguous(dtype, codes[i : i + 1]) for i in range(256)]
    steps = scan_all(script, tensors, many=True)
    check(execute(steps), steps, oracle)


def layouts(oracle, rng, dtype):
    """Views of one storage each, by name."""
    n = 4096
    bits = oracle.random_bits(rng, dtype, n)
    view = lambda sizes, strides, offset=0, **more: oracle.Tensor(dtype, bits, sizes, strides, offset, **more)  # noqa: E731
    return {
        "transposed": view((64, 64), (1, 64)),
        "permuted": view((4, 8, 16, 8), (8, 512, 32, 1)),
        "channels-last": view((2, 16, 8, 16), (2048, 1, 256, 16)),
        "every-third": view((1365,), (3,), 1),
        "columns": view((50, 31), (64, 2), 5),
        "inner-of-4d": view((3, 5, 7, 6), (1024, 128, 16, 2), 3),
        "expanded-rows": view((5, 400), (0, 1), 7),
        "expanded-columns": view((300, 4), (2, 0)),
        "expanded-inside": view((6, 3, 50), (64, 0, 1)),
        "expanded-scalar": view((7, 9), (0, 0), 11),
        "ones-anywhere": view((1, 40, 1, 30), (77, 30, 5, 1)),
        "scalar": view((), (), 13),
        "empty": view((3, 0, 5), (5, 5, 1)),
        "overlapping": view((30, 20), (3, 1)),
        "sixteen": view((2,) * 12 + (1,) * 4, tuple(2**i for i in range(12)) + (1,) * 4),
        "negated": view((500,), (1,), 3, flags=oracle.NEG),
        "negated-strided": view((40, 20), (100, 2), flags=oracle.NEG),
    }


@pytest.mark.parametrize("sanitizer", ["plain", "asan-ubsan"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F8_E5M2FNUZ, DType.C64, DType.C128], **names)
def test_layouts(oracle, script, execute, dtype, sanitizer):
    views = layouts(oracle, np.random.default_rng(4), dtype)
    if dtype == DType.F8_E5M2FNUZ:
        views = {name: view for name, view in views.items() if "negated" not in name}  # no negative zero to negate to
    for many in (False, True):
        steps = scan_all(script, list(views.values()), many=many)
        outcome = execute(steps, sanitizer)
        assert len(outcome.records) == len(views)
        check(outcome, steps, oracle)


@pytest.mark.parametrize("dtype", [DType.C64, DType.C128], **names)
def test_lazy_bits_of_complex_tensors(oracle, script, execute, dtype):
    """Conjugated, negated, both; dense in order, permuted, strided; between two elements' boundaries."""
    bits = oracle.random_bits(np.random.default_rng(5), dtype, 3000)
    part_bytes = oracle.FORMATS[dtype].bits // 8
    shapes = [((3000,), (1,)), ((50, 60), (1, 50)), ((700,), (4,))]
    tensors = [
        oracle.Tensor(dtype, bits, *shape, flags=flags, misalign=misalign)
        for shape, flags, misalign in product(shapes, (0, 1, 2, 3), (0, part_bytes))
    ]
    steps = scan_all(script, tensors)
    check(execute(steps), steps, oracle)


@pytest.mark.parametrize("size", [1, 2, 3, 33, 34, 35, 66, 100, 1200])
def test_tables_of_any_length(oracle, script, execute, size):
    """The search for a block's tensor; empty tensors first, last and between."""
    rng = np.random.default_rng(size)
    lengths = rng.integers(0, 12, size)
    lengths[[0, -1]] = 0
    lengths[size // 2] = 6000  # of several blocks
    tensors = [oracle.contiguous(DType.F32, oracle.random_bits(rng, DType.F32, int(n))) for n in lengths]
    steps = scan_all(script, tensors, many=True)
    outcome = execute(steps)
    assert sorted(outcome.records["record"]["site"]) == list(range(size))
    check(outcome, steps, oracle)


def test_one_and_many_agree_on_small_tensors(oracle, script, execute):
    """A tensor cut into as many blocks has the same bits, whatever is scanned along with it."""
    rng = np.random.default_rng(6)
    tensors = [oracle.contiguous(d, oracle.random_bits(rng, d, 9000)) for d in ALL]
    one = execute(scan_all(script, tensors)).records["record"]
    many = execute(scan_all(script, tensors, many=True)).records["record"]
    fields = [name for name in one.dtype.names if name != "seq"]
    for name in fields:
        np.testing.assert_array_equal(np.sort(one, order="site")[name], np.sort(many, order="site")[name], err_msg=name)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dtype": DType.UNKNOWN}, 1),
        ({"sizes": (2,) * 17, "strides": (1,) * 17}, 1),
        ({"sizes": (4,), "strides": (-1,)}, 1),
        ({"misalign": 1}, 1),
    ],
    ids=["dtype", "17-dimensions", "negative-stride", "misaligned-part"],
)
def test_what_cannot_be_read_is_refused(oracle, script, execute, change, code):
    given = {"dtype": DType.F32, "bits": np.zeros(8, np.uint32), "sizes": (8,), "strides": (1,)} | change
    good = oracle.contiguous(DType.F32, np.zeros(8, np.uint32))
    oracle.FORMATS.setdefault(DType.UNKNOWN, oracle.FORMATS[DType.F32])
    steps = script.Script().open()
    bad, fine = steps.tensor(oracle.Tensor(**given)), steps.tensor(good)
    outcome = execute(steps.scan(bad).many(fine, bad, fine).flush().poll().counters())
    assert outcome.lines == [f"error {code}", f"error {code}", "counters 0 0 0"]
    assert len(outcome.records) == 0
