"""On a CUDA device without the CUDA library: Triton's kernels and torch's operators, launched from the hooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("programs") / "without_library.py"


@pytest.mark.gpu
@pytest.mark.parametrize("reader", ["triton", "torch"])
def test_watching_without_the_library(reader: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: torch.cuda.is_available() is False")
    done = subprocess.run([sys.executable, PROGRAM, reader], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    refusal, note = found["reader"]
    assert refusal == ""
    assert ("Triton kernels" in note) == (reader == "triton"), note
    assert (found["values"], found["same"], found["failed"]) == ([], True, "")
    train = found["train"]
    assert (train["first"], train["failure"], train["unscanned"]) == (["data", 7], None, 0)
    assert train["scans"] > 100
    assert note in train["notes"]
    assert found["captured"]["unscanned"] > 0
    assert (found["captured"]["found"], found["captured"]["failure"]) == (True, None)
