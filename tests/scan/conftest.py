"""What the scan's tests share: implementations, an oracle in long double, tensors with planted specials."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from nanscan.backends import eager
from nanscan.record import RECORD_DTYPE, DType, stats_from_record

COUNTS = ("numel", "nan", "posinf", "neginf", "zero", "subnormal", "first_bad_index", "min", "max", "absmax")

# Moments: sums run in float lanes for the formats up to 32 bits, in double for the others. Relative to std.
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 2e-5,
    torch.bfloat16: 2e-5,
    torch.float8_e4m3fn: 1e-12,
    torch.float8_e5m2: 1e-12,
    torch.float8_e4m3fnuz: 1e-12,
    torch.float8_e5m2fnuz: 1e-12,
    torch.complex64: 2e-5,
    torch.complex128: 1e-11,
}
# Squares of float64 deviations below 1e-160 vanish, those above 1e154 overflow: see record.h.
STD_FLOOR, STD_CEILING = 1e-150, 1e154


@pytest.fixture(scope="session")
def core():
    """The compiled core. Missing, it fails the test under NANSCAN_REQUIRE_NATIVE=1 and skips it elsewhere."""
    try:
        from nanscan import _C as core
    except ImportError as err:
        import nanscan.backends

        why: object = err
        core = None
        if os.environ.get("NANSCAN_BACKEND") != "eager":
            backend = nanscan.backends.get()
            core, why = backend.core, backend.why
        if core is None:
            if os.environ.get("NANSCAN_REQUIRE_NATIVE") == "1":
                pytest.fail(f"NANSCAN_REQUIRE_NATIVE=1 and there is no compiled core: {why}")
            pytest.skip(f"no compiled core: {why}")
    return core


@pytest.fixture(params=["eager", "portable", "avx2"])
def scan(request: pytest.FixtureRequest) -> Iterator[Callable[[torch.Tensor], np.ndarray]]:
    """tensor -> [1] record, for every implementation there is."""
    if request.param == "eager":
        yield eager.scan_record
        return
    core = request.getfixturevalue("core")
    before = core.simd_level()
    try:
        core.set_simd_level(request.param)
    except ValueError as err:
        pytest.skip(str(err))
    yield lambda tensor: np.frombuffer(core.scan(tensor), RECORD_DTYPE)
    core.set_simd_level(before)


@pytest.fixture(params=list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def oracle(tensor: torch.Tensor) -> dict[str, object]:
    """The statistics by numpy, in long double, from one float64 copy."""
    real = tensor.dtype.to_real()
    smallest_normal = torch.finfo(real).smallest_normal
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    parts = torch.view_as_real(values).reshape(-1, 2) if values.is_complex() else values.reshape(-1, 1)
    parts = parts.double().numpy().astype(np.longdouble)
    nan, posinf, neginf = (test(parts).any(1) for test in (np.isnan, np.isposinf, np.isneginf))
    bad = nan | posinf | neginf
    subnormal = ((parts != 0) & (np.abs(parts) < smallest_normal)).any(1) & ~bad
    finite = parts[~bad].reshape(-1)
    mean = finite.mean() if finite.size else np.longdouble("nan")
    m2 = np.square(finite - mean).sum()
    where = np.flatnonzero(bad)
    return {
        "numel": len(parts),
        "nan": int(nan.sum()),
        "posinf": int((posinf & ~nan).sum()),
        "neginf": int((neginf & ~nan & ~posinf).sum()),
        "zero": int((parts == 0).all(1).sum()),
        "subnormal": int(subnormal.sum()),
        "min": float(finite.min()) if finite.size else math.nan,
        "max": float(finite.max()) if finite.size else math.nan,
        "absmax": float(np.abs(finite).max()) if finite.size else math.nan,
        "mean": float(mean),
        "std": float(np.sqrt(m2 / max(finite.size, 1))) if finite.size else math.nan,
        "norm": float(np.sqrt(np.square(finite).sum())),
        "first_bad_index": int(where[0]) if where.size else None,
    }


def first_mismatch(tensor: torch.Tensor, record: np.ndarray, tolerance: float) -> str | None:
    """None if the record says what the oracle says, else the first field that differs, with both values."""
    expected, stats = oracle(tensor), stats_from_record(record)
    about = f"{tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()}"
    if stats.dtype != str(tensor.dtype).removeprefix("torch."):
        return f"{about}: dtype is {stats.dtype}"
    if bool(int(record["flags"][0]) & 1) != (stats.nonfinite > 0):
        return f"{about}: flag BAD is {int(record['flags'][0]) & 1} with {stats.nonfinite} non-finite elements"
    for name in COUNTS:
        found, wanted = getattr(stats, name), expected[name]
        if not (found == wanted or (isinstance(wanted, float) and math.isnan(wanted) and math.isnan(found))):
            return f"{about}: {name} is {found!r}, expected {wanted!r}"
    std = expected["std"]
    allowed = {
        # 5e-324: the mean of the smallest subnormal and zero rounds either way
        "mean": tolerance * std + 4e-16 * abs(expected["mean"]) + 5e-324,
        "std": tolerance * std + STD_FLOOR,
        "norm": tolerance * expected["norm"] + STD_FLOOR,
    }
    for name, margin in allowed.items():
        found, wanted = getattr(stats, name), expected[name]
        if name != "mean" and std > STD_CEILING and found == math.inf:
            continue
        if found == wanted or (math.isnan(wanted) and math.isnan(found)):
            continue
        if not abs(found - wanted) <= margin:
            return f"{about}: {name} is {found!r}, expected {wanted!r} within {margin:.3g}"
    return None


@pytest.fixture
def agree(scan: Callable[[torch.Tensor], np.ndarray]) -> Callable[..., np.ndarray]:
    """Scan and compare with the oracle; fails with the first mismatch, returns the record.

    tolerance: of the moments, relative to std; else the dtype's, times slack.
    """

    def check(tensor: torch.Tensor, tolerance: float | None = None, slack: float = 1.0) -> np.ndarray:
        record = scan(tensor)
        mismatch = first_mismatch(tensor, record, slack * TOLERANCE[tensor.dtype] if tolerance is None else tolerance)
        if mismatch:
            pytest.fail(mismatch)
        return record

    return check


def specials(dtype: torch.dtype, ends: bool) -> torch.Tensor:
    """Values at which formats break: both zeros, subnormals, the least normal, infinities, NaN; the ends if asked."""
    info = torch.finfo(dtype)
    smallest, mantissa = info.smallest_normal, info.eps
    values = [0.0, -0.0, smallest, -smallest, smallest * mantissa, -smallest * (1 - mantissa), 1.0]
    values += [info.max, info.min] if ends else []
    return torch.tensor([*values, math.inf, -math.inf, math.nan], dtype=torch.float64).to(dtype)


@pytest.fixture
def make() -> Callable[..., torch.Tensor]:
    """[n] values of a dtype: scaled normal ones, of which a fraction is replaced by specials.

    Without ends the largest values are not among the specials: their squares overflow and hide the masked pass.
    """

    def values(dtype, n, seed=0, fraction=0.0, mean=0.0, std=1.0, ends=True):
        generator = torch.Generator().manual_seed(seed)
        real = dtype.to_real()
        parts = 2 * n if dtype.is_complex else n
        out = (torch.randn(parts, generator=generator, dtype=torch.float64) * std + mean).to(real)
        if fraction > 0:
            pool = specials(real, ends)
            planted = pool[torch.randint(len(pool), (parts,), generator=generator)]
            out = torch.where(torch.rand(parts, generator=generator) < fraction, planted, out)
        return torch.view_as_complex(out.reshape(n, 2)) if dtype.is_complex else out

    return values


@pytest.fixture
def dtype_code() -> Callable[[torch.dtype], int]:
    return lambda dtype: int(DType.from_torch_name(str(dtype)))
