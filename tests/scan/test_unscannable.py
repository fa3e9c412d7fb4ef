"""Tensors that cannot be read say why, on every backend in the same words."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nanscan.backends import eager

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # prototypes announce themselves
    NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    QUANTIZED = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


def released():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def too_short():
    tensor = torch.ones(8)[4:]
    tensor.untyped_storage().resize_(16)
    return tensor


def fake():
    with FakeTensorMode():
        return torch.ones(3)


CASES = {
    "int": (lambda: torch.arange(3), "not a floating"),
    "bool": (lambda: torch.ones(3, dtype=torch.bool), "not a floating"),
    "uint16": (lambda: torch.ones(3, dtype=torch.uint16), "not a floating"),
    "coo": (lambda: torch.eye(3).to_sparse(), "strided"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "strided"),
    "mkldnn": (lambda: torch.ones(4, 4).to_mkldnn(), "strided"),
    "quantized": (lambda: QUANTIZED, "dequantize"),
    "meta": (lambda: torch.ones(3, device="meta"), "meta tensor"),
    "fake": (fake, "subclass"),
    "nested": (lambda: NESTED, "nested tensor"),
    "complex32": (lambda: torch.ones(3, dtype=torch.complex32), "without a kernel"),
    "e8m0": (lambda: torch.ones(3).to(torch.float8_e8m0fnu), "without a kernel"),
    "released": (released, "memory was released"),
    "too_short": (too_short, "memory was released"),
    "zerotensor": (lambda: torch._efficientzerotensor(3), "memory was released"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused_with_the_reason(scan, case):
    make, words = CASES[case]
    with pytest.raises(TypeError, match=words):
        scan(make())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_words_on_both_backends(core, case):
    make, _ = CASES[case]
    with pytest.raises(TypeError) as native:
        core.scan(make())
    with pytest.raises(eager.UnscannableTensor) as plain:
        eager.scan_record(make())
    assert str(native.value) == str(plain.value)


def test_inside_functorch_transforms(scan):
    reasons = []

    def look(x):
        try:
            scan(x)
        except TypeError as err:
            reasons.append(str(err))
        return x.sum()

    torch.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert len(reasons) == 2
    assert all("functorch" in reason for reason in reasons)


def test_not_a_tensor(scan):
    with pytest.raises(TypeError):
        scan([1.0, 2.0])


def test_levels_are_checked(core):
    with pytest.raises(ValueError, match="'sse9' is not an instruction set; use 'portable' or 'avx2'"):
        core.set_simd_level("sse9")
    assert core.simd_level() in ("portable", "avx2")


def test_lazy_copies_stay_lazy(core):
    # GIVEN a copy-on-write clone
    tensor = torch.ones(1000)
    lazy = torch._lazy_clone(tensor)
    core.scan(lazy)
    # THEN reading did not make it real
    assert torch._C._is_cow_tensor(lazy)
