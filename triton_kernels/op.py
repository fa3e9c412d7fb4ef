"""The scan as a registered operator: torch.compile keeps it in the graph, as one call."""

from __future__ import annotations

import torch
from torch.library import triton_op, wrap_triton

from nanscan.record import RECORD_BYTES, DType, new_record
from nanscan.triton_kernels.launch import head_words, launch_one


@triton_op("nanscan::scan_triton", mutates_args={})
def scan_triton(x: torch.Tensor) -> torch.Tensor:
    """[128] uint8 on x's device: x's record, who and where left empty. Waits for nothing.

    The pieces that torch.compile traces: at most one copy (of a tensor that is not contiguous) and two launches.
    """
    header = new_record()
    dtype = DType.from_torch_name(str(x.dtype))
    header["dtype"] = dtype
    if dtype == DType.UNKNOWN:
        raise TypeError(
            f"scan_triton(x): x is {x.dtype}, which cannot hold NaN or Inf; scan floating or complex tensors"
        )
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    return launch_one(x, dtype, head_words(header), wrap_triton).view(torch.uint8)


@scan_triton.register_fake
def _fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(RECORD_BYTES, dtype=torch.uint8, device=x.device)
