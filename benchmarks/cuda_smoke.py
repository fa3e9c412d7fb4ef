"""Does the nanscan of this environment hold together with a CUDA build of torch? Works with and without a GPU.

Run: python benchmarks/cuda_smoke.py [--any-torch]
Prints one line for each thing tried, and exits with 1 when one of them is not as it should be. cuda_build_check.sh runs
it against an installed nanscan, gpu_check.sh on the machine with the GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import nanscan
from nanscan import backends
from nanscan.backends import device


class Log(nn.Module):
    """NaN for what is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def versions() -> str:
    assert torch.version.cuda or "--any-torch" in sys.argv, f"torch {torch.__version__} is no CUDA build"
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {', '.join(devices) or 'no GPU'}"


def core() -> str:
    backend = backends.get()
    assert backend.core is not None, backend.why
    return f"{backend.core.torch_version}, {backend.why}"


def stream_handle() -> str:
    """Which way the core takes to the current stream; one of the two must be there."""
    symbols = subprocess.run(["nm", "-DC", backends.get().core.__file__], capture_output=True, text=True).stdout
    if "U c10::Stream::native_handle() const" in symbols:
        return "c10::Stream::native_handle"
    current = getattr(ctypes.CDLL("libtorch_cuda.so"), "aoti_torch_get_current_cuda_stream", None)
    assert current is not None, "neither c10::Stream::native_handle nor aoti_torch_get_current_cuda_stream"
    return "aoti_torch_get_current_cuda_stream"


def library() -> str:
    """The core loads libnanscan_cuda, and the library words the driver's answer."""
    why = device.load(backends.get().core)
    assert why == "", why
    path = Path(device.__file__).parent.parent / device.LIBRARY
    session = backends.get().core.Session(64)
    opened = session.open_device(0)
    assert opened == torch.cuda.is_available(), session.device_error
    session.close()
    size = path.stat().st_size / 1e6
    return f"{path.name}, {size:.1f} MB; {'device 0 opened' if opened else session.device_error}"


def module_level() -> str:
    return _found("module", "cpu")


def op_level() -> str:
    return _found("op", "cpu")


def on_the_gpu() -> str:
    return _found("module", "cuda") if torch.cuda.is_available() else "left out: no CUDA device"


def _found(level: str, where: str) -> str:
    model = nn.Sequential(nn.Linear(4, 4), Log(), nn.Linear(4, 1)).to(where)
    with nanscan.enable(model, level=level, on_anomaly="record") as scanner:
        model(torch.randn(8, 4, device=where)).sum().backward()
        scanner.flush()
        scanner.step()
        scanner.flush()
    first = scanner.first
    assert first is not None, "the planted NaN was not found"
    assert first.module == "1", f"the planted NaN was put down to {first.module!r}"
    return f"{first.kind} in module {first.module}" + (f", {first.op}" if first.op else "")


TRIES: list[Callable[[], str]] = [versions, core, stream_handle, library, module_level, op_level, on_the_gpu]


def main() -> int:
    failed = 0
    for attempt in TRIES:
        try:
            outcome, said = "ok", attempt()
        except Exception as error:
            outcome, said, failed = "FAILED", f"{type(error).__name__}: {error}", failed + 1
        print(f"{outcome:<7} {attempt.__name__.replace('_', ' ')}: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
