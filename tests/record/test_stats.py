"""From records to numbers for people, and the merge of two records."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from nanscan.record import RECORD_DTYPE, DType, Flag, TensorStats, merge, new_record, stats_from_record


def record_of(values, dtype=DType.F64):
    """[1] record of float64 values, by numpy."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    record = new_record()
    record["dtype"], record["n"] = dtype, len(values)
    record["n_nan"], record["n_zero"] = np.isnan(values).sum(), (values == 0).sum()
    record["n_posinf"], record["n_neginf"] = np.isposinf(values).sum(), np.isneginf(values).sum()
    record["flags"] = Flag.BAD if len(finite) < len(values) else 0
    if len(finite):
        record["min"], record["max"], record["mean"] = finite.min(), finite.max(), finite.mean()
        record["m2"] = np.square(finite - finite.mean()).sum()
    if len(finite) < len(values):
        record["first_bad"] = np.flatnonzero(~np.isfinite(values))[0]
    return record


def close(a, b):
    for name in RECORD_DTYPE.names:
        assert float(a[name][0]) == pytest.approx(float(b[name][0]), rel=1e-12, abs=1e-12), name


def test_stats():
    stats = stats_from_record(record_of([3.0, -4.0, 0.0, math.nan, math.inf]))
    assert (stats.numel, stats.nan, stats.posinf, stats.neginf, stats.zero) == (5, 1, 1, 0, 1)
    assert (stats.nonfinite, stats.finite, stats.kind, stats.first_bad_index) == (2, 3, "both", 3)
    assert (stats.min, stats.max, stats.absmax, stats.norm) == (-4.0, 3.0, 4.0, pytest.approx(5.0))
    assert stats.mean == pytest.approx(-1 / 3)
    assert stats.std == pytest.approx(np.std([3.0, -4.0, 0.0]))
    assert stats.dtype == "float64"


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.0], "none"), ([math.nan], "nan"), ([-math.inf], "inf"), ([math.inf, math.nan], "both"), ([], "none")],
    ids=["clean", "nan", "inf", "both", "empty"],
)
def test_kind(values, kind):
    assert stats_from_record(record_of(values)).kind == kind


def test_nothing_finite():
    for values in ([], [math.nan, math.inf]):
        stats = stats_from_record(record_of(values))
        assert all(math.isnan(value) for value in (stats.min, stats.max, stats.mean, stats.std, stats.absmax))
        assert stats.norm == 0.0


def test_complex_moments_run_over_parts():
    # GIVEN three elements, one of them bad: four finite parts 1, 2, 3, 4
    record = new_record()
    record["dtype"], record["n"], record["n_nan"] = DType.C64, 3, 1
    record["min"], record["max"], record["mean"], record["m2"] = 1.0, 4.0, 2.5, 5.0
    stats = stats_from_record(record)
    assert (stats.std, stats.norm) == (pytest.approx(math.sqrt(5 / 4)), pytest.approx(math.sqrt(30)))


def test_headroom():
    assert stats_from_record(record_of([32752.0], DType.F16)).headroom == pytest.approx(2.0)
    assert stats_from_record(record_of([0.0], DType.F16)).headroom == math.inf
    assert math.isnan(stats_from_record(record_of([math.nan], DType.F16)).headroom)


def test_norm_beyond_the_square_root_of_float64():
    assert stats_from_record(record_of([1e200])).norm == pytest.approx(1e200)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
def test_names_and_limits(dtype):
    torch = pytest.importorskip("torch")
    if dtype is DType.UNKNOWN:
        assert math.isnan(dtype.max_finite)
        return
    torch_dtype = getattr(torch, dtype.torch_name)
    assert dtype.max_finite == torch.finfo(torch_dtype).max
    assert dtype.is_complex == torch_dtype.is_complex
    assert DType.from_torch_name(str(torch_dtype)) is dtype
    assert DType.from_torch_name("int64") is DType.UNKNOWN


def test_merge_at_every_cut():
    values = [1.0, 0.0, math.inf, 1e3, 1e3 + 1, math.nan, -7.0, 0.0]
    whole = record_of(values)
    for i, j in itertools.combinations_with_replacement(range(len(values) + 1), 2):
        a, b, c = record_of(values[:i]), record_of(values[i:j]), record_of(values[j:])
        close(merge(merge(a, b), c), whole)
        close(merge(a, merge(b, c)), whole)


def test_merge_has_a_zero():
    some = record_of([1.0, math.nan, 2.0])
    close(merge(some, new_record()), some)
    close(merge(new_record(), some), some)


def test_merge_of_shifted_shards():
    # Means 0 and 10: the term of Chan's formula has a sign, and zero-mean shards hide it
    merged = merge(record_of([0.0, 0.0]), record_of([10.0, 10.0]))
    assert (merged["mean"][0], merged["m2"][0]) == (5.0, 100.0)


def test_merge_keeps_who_and_where_of_the_first():
    a, b = record_of([1.0]), record_of([math.nan])
    a["site"], a["step"], b["site"], b["step"] = 3, 4, 5, 6
    merged = merge(a, b)
    assert (merged["site"][0], merged["step"][0], merged["flags"][0], merged["first_bad"][0]) == (3, 4, Flag.BAD, 1)


def test_merge_refuses_to_mix():
    with pytest.raises(ValueError, match="float64 and float16; merge like with like"):
        merge(record_of([1.0]), record_of([1.0], DType.F16))
    with pytest.raises(ValueError, match="expected one record, found an array of 2"):
        merge(np.zeros(2, RECORD_DTYPE), new_record())


def test_stats_are_frozen():
    stats = stats_from_record(new_record())
    with pytest.raises(AttributeError):
        stats.nan = 3
    assert isinstance(stats, TensorStats)


def test_works_without_torch():
    code = "import sys; import nanscan.record; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
