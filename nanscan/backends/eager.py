"""The scan in plain PyTorch: the oracle of the tests, and the last resort where the compiled core is missing.

Same signature and values as the kernels: float64 moments in two passes, exact counts, the logical index of the first
bad element. Works on any device through torch's own operators, and waits for it; tens of times slower than the kernels.
Classes come from bits, never from comparisons of values: those would follow torch.set_flush_denormal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from nanscan.record import DType, Flag, new_record

CHUNK = 1 << 22  # elements looked at together: float64 copies stay near 32 MiB however large the tensor


class UnscannableTensor(TypeError):
    """A tensor whose values cannot be read; the message is the reason."""


class _Format(NamedTuple):
    """A binary format as integers see it."""

    bits: torch.dtype  # signed integer of the same width
    mag: int  # everything but the sign
    min_normal: int  # smallest magnitude that is not subnormal
    inf: int | None  # None: the format has no infinity
    nan: int = 0  # without inf: the one magnitude (or, for fnuz, pattern) that is NaN


_FORMATS = {
    torch.float64: _Format(torch.int64, 0x7FFFFFFFFFFFFFFF, 1 << 52, 0x7FF << 52),
    torch.float32: _Format(torch.int32, 0x7FFFFFFF, 1 << 23, 0xFF << 23),
    torch.float16: _Format(torch.int16, 0x7FFF, 1 << 10, 0x1F << 10),
    torch.bfloat16: _Format(torch.int16, 0x7FFF, 1 << 7, 0xFF << 7),
    torch.float8_e5m2: _Format(torch.int8, 0x7F, 1 << 2, 0x1F << 2),
    torch.float8_e4m3fn: _Format(torch.int8, 0x7F, 1 << 3, None, 0x7F),
    torch.float8_e4m3fnuz: _Format(torch.int8, 0x7F, 1 << 3, None, -0x80),
    torch.float8_e5m2fnuz: _Format(torch.int8, 0x7F, 1 << 2, None, -0x80),
}
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def scan_record(tensor: torch.Tensor) -> np.ndarray:
    """Statistics of one tensor: [1] of RECORD_DTYPE. Raises UnscannableTensor with the reason."""
    check_scannable(tensor)
    record = new_record()
    record["dtype"] = DType.from_torch_name(str(tensor.dtype))
    record["n"] = tensor.numel()
    with torch.no_grad():
        flat = _flat(tensor.detach())
        chunks = [flat[start : start + CHUNK] for start in range(0, flat.shape[0], CHUNK)]
        n, shift = 0, 0.0
        for i, chunk in enumerate(chunks):
            finite = _count(chunk, i * CHUNK, record)
            if finite.numel():
                shift = shift if n else float(finite[0])
                n += finite.numel()
                record["min"] = min(float(record["min"][0]), float(finite.min()))
                record["max"] = max(float(record["max"][0]), float(finite.max()))
        if n:
            # Near float64's ends differences, sums and squares overflow on the way to a mean that it can hold.
            far = max(abs(float(record["min"][0])), abs(float(record["max"][0]))) > 1e150
            scale = 2.0**-540 if far else 1.0
            # Two passes, the first about a value of the data: a plain sum of values near 1e9 loses what is small.
            offset = sum(float((_finite(chunk) * scale - shift * scale).sum()) for chunk in chunks) / n
            mean = shift * scale + offset
            m2 = sum(float((_finite(chunk) * scale - mean).square().sum()) for chunk in chunks)
            record["mean"], record["m2"] = mean / scale, m2 / scale / scale
    bad = int(record["n_nan"][0]) + int(record["n_posinf"][0]) + int(record["n_neginf"][0])
    record["flags"] = int(Flag.BAD) if bad else 0
    return record


def check_scannable(tensor: object) -> None:
    """Raise UnscannableTensor unless the tensor is of a kind that torch lets us read."""
    if not isinstance(tensor, torch.Tensor):
        raise UnscannableTensor(f"tensor: expected a torch.Tensor, found {type(tensor).__name__}")
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        if tensor.is_quantized:
            raise UnscannableTensor("quantized tensor: scan its dequantize() instead")
        raise UnscannableTensor("not a floating or complex tensor: it cannot hold NaN or Inf")
    if tensor.dtype not in _FORMATS and tensor.dtype not in _PARTS:
        raise UnscannableTensor("floating dtype without a kernel: scan its float() copy")
    if _is_python_subclass(tensor):
        raise UnscannableTensor(
            "tensor subclass with __torch_dispatch__ (fake tensor, DTensor ...): scan what it holds, e.g. to_local()"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UnscannableTensor("wrapped by a functorch transform (vmap, grad, functionalize): scan outside it")
    if tensor.is_nested:
        raise UnscannableTensor("nested tensor: scan its values() or its components")
    if tensor.layout != torch.strided:
        raise UnscannableTensor("not a strided tensor (sparse or another layout): scan its values() instead")
    if tensor.is_meta:
        raise UnscannableTensor("meta tensor: it has a shape and no data")
    if tensor.numel() and (tensor._is_zerotensor() or not _has_memory(tensor)):
        raise UnscannableTensor("tensor without storage, or with less than its shape needs: its memory was released")


def _is_python_subclass(tensor: torch.Tensor) -> bool:
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def _has_memory(tensor: torch.Tensor) -> bool:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + extent) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """[n], or [n, 2] for complex, in row-major order; a copy only where strides or lazy bits ask for one."""
    tensor = tensor.resolve_conj().resolve_neg().reshape(-1)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _classes(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Masks by name, of the shape of values (floating, real)."""
    form = _FORMATS[values.dtype]
    bits = values.view(form.bits)
    mag = bits & form.mag
    never = torch.zeros_like(bits, dtype=torch.bool)
    if form.inf is not None:
        nan, is_inf = mag > form.inf, mag == form.inf
    else:
        nan, is_inf = torch.eq(bits if form.nan == -0x80 else mag, form.nan), never
    return {
        "nan": nan,
        "posinf": is_inf & (bits >= 0),
        "neginf": is_inf & (bits < 0),
        "zero": (mag == 0) & ~nan,
        "subnormal": (mag > 0) & (mag < form.min_normal),
    }


def _element_classes(chunk: torch.Tensor) -> dict[str, torch.Tensor]:
    """Masks of whole elements: a complex one (chunk [n, 2]) counts once, by its worse part."""
    masks = _classes(chunk)
    if chunk.dim() == 1:
        return masks
    nan, posinf, neginf = (masks[name].any(1) for name in ("nan", "posinf", "neginf"))
    bad = nan | posinf | neginf
    return {
        "nan": nan,
        "posinf": posinf & ~nan,
        "neginf": neginf & ~nan & ~posinf,
        "zero": masks["zero"].all(1),
        "subnormal": masks["subnormal"].any(1) & ~bad,
    }


def _finite(chunk: torch.Tensor) -> torch.Tensor:
    """[k] float64: the values of the finite elements."""
    masks = _element_classes(chunk)
    good = ~(masks["nan"] | masks["posinf"] | masks["neginf"])
    return chunk.to(torch.float64)[good].reshape(-1)


def _count(chunk: torch.Tensor, start: int, record: np.ndarray) -> torch.Tensor:
    """Add the chunk's counts to the record; returns what `_finite` does."""
    masks = _element_classes(chunk)
    for name, mask in masks.items():
        record[f"n_{name}"] += int(mask.sum())
    bad = masks["nan"] | masks["posinf"] | masks["neginf"]
    if int(record["first_bad"][0]) < 0 and bool(bad.any()):
        record["first_bad"] = start + int(bad.to(torch.uint8).argmax())
    return _finite(chunk)
