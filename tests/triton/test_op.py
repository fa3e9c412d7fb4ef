"""The registered operator: one node in a full graph, shapes without a device, and no copy of what is scanned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def op(triton):
    from nanscan.triton_kernels import op

    return op


def test_stays_one_node_under_fullgraph(op) -> None:
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return lambda x: (x * 2, torch.zeros(128, dtype=torch.uint8))  # nothing here could run the kernel

    @torch.compile(backend=backend, fullgraph=True)
    def program(x):
        y = x * 2
        return y, torch.ops.nanscan.scan_triton(y)

    assert program(torch.ones(4, 4))[1].shape == (128,)
    assert [str(node.target) for node in graphs[0].graph.nodes].count("nanscan.scan_triton") == 1


def test_refuses_what_cannot_be_bad(op) -> None:
    with pytest.raises(TypeError, match=r"scan_triton\(x\): x is torch.int64, which cannot hold NaN or Inf"):
        torch.ops.nanscan.scan_triton(torch.arange(3))


@pytest.mark.slow
def test_traced_for_a_gpu(op) -> None:
    script = Path(__file__).with_name("op_graph.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["launch, may write partials,out", "launch, may write out"]
