"""Traces the registered operator as torch.compile would, for a GPU that is not there; prints what came of it.

A program of its own: Triton is given a driver that only knows the target, and keeps it for good.
"""

from __future__ import annotations

import sys

import torch
import triton
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget

from nanscan.triton_kernels import op


class NoDevice:
    """Enough of a driver for torch to ask which target it compiles for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda")


class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y, torch.ops.nanscan.scan_triton(y)


def main() -> None:
    triton.runtime.driver.set_active(NoDevice())
    assert op.scan_triton is not None
    with FakeTensorMode():
        for shape, dtype in (((100, 300), torch.float32), ((8,), torch.bfloat16), ((0,), torch.float8_e4m3fn)):
            record = torch.ops.nanscan.scan_triton(torch.empty(shape, dtype=dtype, device="cuda"))
            assert (record.shape, record.dtype, record.device.type) == ((128,), torch.uint8, "cuda"), record
        graph, _ = aot_export_module(Model(), (torch.empty(100, 300, device="cuda"),), trace_joint=False)
    launches = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    for node in launches:
        written = node.kwargs["tensors_to_clone"]
        print("launch, may write", ",".join(written))
    if "data" in str([node.kwargs["tensors_to_clone"] for node in launches]):
        sys.exit("torch thinks that the scan writes to what it scans, and would copy it")


if __name__ == "__main__":
    main()
