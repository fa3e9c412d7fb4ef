"""A process of its own for test_scan_late.py: nanscan.scan() with the stand-in, whose records come when waited for.

Run: python scan_program.py LIBRARY CASE
"""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np
import torch

import nanscan
from nanscan import backends
from nanscan.backends import device, eager

EXACT = ("numel", "nan", "posinf", "neginf", "zero", "subnormal", "min", "max", "first_bad_index", "dtype")


def layouts() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    base = torch.randn(40, 30)
    base[3, 5], base[17, 2] = float("nan"), float("-inf")
    return {
        "contiguous": base,
        "transposed": base.t(),
        "strided": base[::3, 1::2],
        "expanded": base[:, :1].expand(40, 4),
        "scalar": torch.tensor(2.0),
        "bf16": base.bfloat16(),
        "fp8": base.to(torch.float8_e5m2),
        "complex": torch.complex(base, base.flip(0)).conj(),
        "float64": base.double() * 1e200,
    }


def values() -> None:
    """The same numbers as plain PyTorch has."""
    core = backends.get().core
    for name, tensor in layouts().items():
        got, want = nanscan.scan(tensor), nanscan.record.stats_from_record(eager.scan_record(tensor))
        for field in EXACT:
            assert getattr(got, field) == getattr(want, field), (name, field, got, want)
        for field in ("mean", "std", "norm"):
            np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=1e-5, atol=1e-6, err_msg=name)
    assert nanscan.scan(torch.empty(0, 3)).numel == 0
    assert core is not None


def threads() -> None:
    """Each caller gets the record of its own tensor."""
    wrong = []

    def work(number: int) -> None:
        tensor = torch.full((number + 1,), float(number))
        for _ in range(30):
            stats = nanscan.scan(tensor)
            if (stats.numel, stats.max) != (number + 1, float(number)):
                wrong.append((number, stats))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def beside_a_scanner() -> None:
    """A scanner's own records and coverage do not know of it."""
    with nanscan.enable(torch.nn.Linear(2, 2), on_anomaly="record") as scanner:
        before = scanner._core.counters()["scans"]
        assert nanscan.scan(torch.tensor([float("nan")])).nan == 1
        scanner.flush()
        assert scanner.first is None
        assert scanner._core.counters()["scans"] == before


def refusals() -> None:
    for tensor, words in ((torch.tensor([1]), "cannot hold NaN"), (torch.zeros(2).to_sparse(), "sparse")):
        said = ""
        try:
            nanscan.scan(tensor)
        except TypeError as err:
            said = str(err)
        assert words in said, said


def steps_down() -> None:
    """What the library does not take goes to Triton, which is not there, and then to plain PyTorch: each said once."""
    sys.modules["nanscan.triton_kernels.launch"] = None  # type: ignore[assignment]
    tensor = torch.ones([1] * 17)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert nanscan.scan(tensor).max == 1.0
        assert nanscan.scan(tensor).max == 1.0
    print(*(f"{w.filename.rpartition('/')[2]}: {w.category.__name__}: {w.message}" for w in caught), sep="\n")


def triton_only() -> None:
    sys.modules["nanscan.triton_kernels.launch"] = None  # type: ignore[assignment]
    try:
        nanscan.scan(torch.ones(3))
    except nanscan.NanscanError as err:
        print(err)


if __name__ == "__main__":
    device.use(backends.get().core, sys.argv[1], stand_in=True)
    {f.__name__: f for f in (values, threads, beside_a_scanner, refusals, steps_down, triton_only)}[sys.argv[2]]()
