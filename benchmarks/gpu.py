"""What the GPU benchmarks share: the device, or exit code 2; time by CUDA events; data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

NO_DEVICE = 2  # exit code


def require(program: str) -> Any:
    """The compiled core with the CUDA library in it. Without, the program ends with NO_DEVICE and the reason."""
    if not torch.cuda.is_available():
        print(f"{program}: needs a CUDA device: torch.cuda.is_available() is False", file=sys.stderr)
        sys.exit(NO_DEVICE)
    from nanscan import backends
    from nanscan.backends import device

    backend = backends.get()
    why = device.load(backend.core)
    if why:
        print(f"{program}: needs libnanscan_cuda: {why}; {backend.why}", file=sys.stderr)
        sys.exit(NO_DEVICE)
    return backend.core


def name() -> str:
    return torch.cuda.get_device_name(0)


def about() -> dict[str, Any]:
    """The device's part of a row."""
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": found.name,
        "gpu_sms": found.multi_processor_count,
        "gpu_l2_bytes": getattr(found, "L2_cache_size", 0),
        "cuda": torch.version.cuda,
        "gpu_memory_bytes": found.total_memory,
    }


def elapsed_ms(call: Callable[[], object], n: int) -> float:
    """Milliseconds of one of n calls in a row on the current stream, by the device's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / n


def normal(n: int, dtype: torch.dtype) -> torch.Tensor:
    """[n] standard normal values, made in pieces: some dtypes are converted from float32, which may be larger."""
    torch.manual_seed(0)
    x = torch.empty(n, dtype=dtype, device="cuda")
    wanted = dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32
    for piece in x.split(1 << 28):
        piece.copy_(torch.randn(piece.shape, dtype=wanted, device="cuda"))
    return x
