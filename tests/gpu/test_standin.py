"""The stand-in library through ctypes: what tests of other areas drive the whole device path with."""

from __future__ import annotations

import ctypes
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest

from nanscan.record import RECORD_DTYPE, DType, Flag


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("numel", c_int64),
        ("dtype", c_int32),
        ("n_dims", c_int32),
        ("sizes", c_int64 * 16),
        ("strides", c_int64 * 16),
        ("flags", c_int32),
    )


def view(array: np.ndarray) -> Tensor:
    """A float32 array as the library takes it; keep the array alive until the scan has run."""
    t = Tensor(array.ctypes.data, array.size, DType.F32, array.ndim)
    t.sizes[: array.ndim] = array.shape
    t.strides[: array.ndim] = [stride // 4 for stride in array.strides]
    return t


@pytest.fixture(scope="module")
def library(standin):
    library = ctypes.CDLL(str(standin))
    library.nanscan_cuda_error.restype = c_char_p
    library.nanscan_cuda_open.argtypes = (c_int, c_uint32, POINTER(c_void_p))
    for name in ("scan", "close", "flush", "poll", "scan_many", "counters"):
        getattr(library, f"nanscan_cuda_{name}").argtypes = {
            "scan": (c_void_p, POINTER(Tensor), c_void_p, c_void_p),
            "scan_many": (c_void_p, POINTER(Tensor), c_void_p, c_uint32, c_void_p),
            "poll": (c_void_p, c_void_p, POINTER(c_uint64), c_uint32, POINTER(c_uint32)),
            "counters": (c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64)),
        }.get(name, (c_void_p,))
    library.nanscan_standin_run.argtypes = (c_uint64, c_uint32)
    library.nanscan_standin_capture.argtypes = (c_void_p, c_int)
    library.nanscan_standin_replay.argtypes = (c_void_p,)
    return library


@pytest.fixture
def ring(library):
    ring = c_void_p()
    assert library.nanscan_cuda_open(0, 1 << 14, byref(ring)) == 0
    yield ring
    assert library.nanscan_cuda_close(ring) == 0


def header(site: int) -> np.ndarray:
    record = np.zeros(1, RECORD_DTYPE)
    record["site"] = site
    return record


def poll(library, ring) -> np.ndarray:
    out, stamps, n = np.zeros(1 << 14, RECORD_DTYPE), (c_uint64 * (1 << 14))(), c_uint32()
    assert library.nanscan_cuda_poll(ring, out.ctypes.data, stamps, 1 << 14, byref(n)) == 0
    return out[: n.value]


def test_poll_runs_nothing_and_flush_everything(library, ring):
    x = np.array([1.0, np.inf, 3.0], np.float32)
    assert library.nanscan_cuda_scan(ring, byref(view(x)), header(5).ctypes.data, None) == 0
    assert len(poll(library, ring)) == 0
    assert library.nanscan_standin_queued() == 1
    x[2] = np.nan  # what is there when the kernel runs counts, as on a device
    assert library.nanscan_cuda_flush(ring) == 0
    (record,) = poll(library, ring)
    assert (record["site"], record["n_posinf"], record["n_nan"], record["first_bad"]) == (5, 1, 1, 1)


def test_any_pointer_is_a_stream_and_seeds_pick(library, ring):
    x = np.ones((4, 5), np.float32)
    orders = set()
    for seed in range(6):
        for site in range(8):
            stream = c_void_p(0xDEAD0000 + site)
            assert library.nanscan_cuda_scan(ring, byref(view(x)), header(site).ctypes.data, stream) == 0
        assert library.nanscan_standin_run(seed, 3) == 3
        assert library.nanscan_standin_run(seed, 100) == 5
        orders.add(tuple(poll(library, ring)["site"]))
    assert len(orders) > 1
    assert all(sorted(order) == list(range(8)) for order in orders)


def test_capture_and_replay(library, ring):
    x, stream, yes = np.ones(3, np.float32), c_void_p(0x1234), c_int()
    assert library.nanscan_standin_capture(stream, 1) == 0
    assert library.nanscan_cuda_capturing(stream, byref(yes)) == 0
    assert yes.value == 1
    assert library.nanscan_cuda_scan(ring, byref(view(x)), header(1).ctypes.data, stream) == 0
    assert library.nanscan_standin_replay(stream) == 900  # not while it captures
    assert library.nanscan_standin_capture(stream, 0) == 0
    for _ in range(2):
        assert library.nanscan_standin_replay(stream) == 0
    assert library.nanscan_cuda_flush(ring) == 0
    records = poll(library, ring)
    assert records["step"].tolist() == [0, 1]
    assert (records["flags"] & Flag.REPLAY != 0).all()


def test_errors_have_words_and_a_bad_device_is_refused(library):
    ring = c_void_p()
    code = library.nanscan_cuda_open(99, 16, byref(ring))
    assert library.nanscan_cuda_error(code) == b"invalid device ordinal"
    assert ring.value is None
    assert library.nanscan_cuda_abi() == 1


def test_thousands_of_small_tensors_a_second(library, ring):
    """Not a measurement: far slower would make it useless for driving whole training steps."""
    x = np.ones(256, np.float32)
    tensor, head = view(x), header(0)
    start = time.perf_counter()
    for _ in range(2000):
        library.nanscan_cuda_scan(ring, byref(tensor), head.ctypes.data, None)
    library.nanscan_cuda_flush(ring)
    assert time.perf_counter() - start < 5.0
    assert len(poll(library, ring)) == 2000


def test_a_large_tensor_of_two_thousand_blocks(library, ring):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1_000_003).astype(np.float32) + np.float32(1e4)
    x[[700_000, 900_000]] = np.nan, -np.inf
    assert library.nanscan_cuda_scan(ring, byref(view(x)), header(0).ctypes.data, None) == 0
    assert library.nanscan_cuda_flush(ring) == 0
    (record,) = poll(library, ring)
    good = x[np.isfinite(x)].astype(np.float64)
    assert (record["n"], record["n_nan"], record["n_neginf"], record["first_bad"]) == (len(x), 1, 1, 700_000)
    assert record["mean"] == pytest.approx(good.mean(), abs=1e-7 * good.std())
    assert np.sqrt(record["m2"] / good.size) == pytest.approx(good.std(), rel=1e-6)


def test_more_than_two_to_the_31_elements(library, ring):
    """Expanded: few in memory, and indices and counts beyond 32 bits."""
    x = np.array([1.0, np.nan, 3.0], np.float32)
    wide = np.lib.stride_tricks.as_strided(x, (3, 1 << 31), (4, 0))
    assert library.nanscan_cuda_scan(ring, byref(view(wide)), header(0).ctypes.data, None) == 0
    assert library.nanscan_cuda_flush(ring) == 0
    (record,) = poll(library, ring)
    assert (record["n"], record["n_nan"], record["first_bad"]) == (3 << 31, 1 << 31, 1 << 31)
    assert (record["min"], record["max"], record["mean"], record["m2"]) == (1.0, 3.0, 2.0, float(2 << 31))
