"""Which reader watched GPU tensors get, and who is told: the choice alone, with what it asks replaced."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import nanscan
from nanscan.backends import device, watching
from nanscan.backends.watching import BY_PYTORCH, BY_TRITON, Reader
from nanscan.scanner import models


class Core:
    """Of the compiled core, what the choice calls."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal, self.used, self.failed = refusal, [], ""

    def use_torch_device(self, launch: Any, only_kernel: bool = False, stand_in: bool = False) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.used.append((launch, only_kernel, stand_in))

    def kernel_failure(self) -> str:
        return self.failed


def launch(part: Any, row: Any, dtype: int) -> None:
    pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    """world(library, triton) sets why the library and Triton cannot be used; "" where they can."""

    def make(library: str, triton: str, capturing: bool = False) -> None:
        monkeypatch.setattr(watching, "_reader", None)
        monkeypatch.setattr(device, "load", lambda core: library)
        monkeypatch.setattr(watching, "_triton", lambda index: (None, triton) if triton else (launch, ""))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)

    return make


@pytest.mark.parametrize(
    ("backend", "library", "triton", "refusal", "note", "used"),
    [
        ("auto", "", "", "", "", []),
        ("auto", "no nvcc", "", "", f"{BY_TRITON}; {watching.NO_GRAPHS}: no nvcc", [(launch, False, False)]),
        ("auto", "no nvcc", "no Triton", "", BY_PYTORCH, [(None, False, False)]),
        ("native", "", "", "", "", []),
        ("native", "no nvcc", "", "no nvcc, and NANSCAN_BACKEND=native takes no other", "", []),
        ("triton", "", "", "", f"{BY_TRITON}; {watching.NO_GRAPHS}: NANSCAN_BACKEND=triton", [(launch, True, False)]),
        ("triton", "", "none", "NANSCAN_BACKEND=triton, but Triton cannot be used: none", "", []),
    ],
)
def test_each_step_down(world, backend, library, triton, refusal, note, used) -> None:
    world(library, triton)
    core = Core()
    reader = watching.prepare(core, backend, 0)
    assert reader.refusal == refusal
    assert reader.note.startswith(note)
    assert bool(reader.note) == bool(note)
    assert core.used == used
    assert watching.prepare(core, backend, 1) is reader


def test_a_torch_that_cannot_is_a_refusal(world) -> None:
    world("no nvcc", "")
    assert watching.prepare(Core("too old a torch"), "auto", 0) == Reader("no nvcc; without it, too old a torch")


def test_while_a_graph_is_captured_nothing_is_decided(world) -> None:
    world("no nvcc", "", capturing=True)
    assert watching.prepare(Core(), "auto", 0) == Reader("a graph is being captured")
    assert watching._reader is None


def test_without_a_core_plain_pytorch_reads_and_waits() -> None:
    refusal, note = watching.prepare(None, "eager", 0)
    assert refusal == ""
    assert "waits for each" in note


def test_the_user_is_told_once_and_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.devices, "indices", lambda tensors: {0})
    monkeypatch.setattr(models.watching, "prepare", lambda core, backend, index: Reader(note="read by somebody"))
    monkeypatch.setattr(models.watching, "failure", lambda core: "that somebody failed")
    if nanscan.backends.get().core is None:
        pytest.skip("no compiled core")
    with pytest.warns(nanscan.NanscanWarning, match="read by somebody"):
        scanner = nanscan.enable(torch.nn.Linear(2, 2), on_anomaly="record")
    with scanner:
        # Where the CUDA library was built it says besides that there is no such device.
        told = [note for note in scanner.coverage["notes"] if "somebody" in note]
        assert told == ["read by somebody", "that somebody failed"]
        assert scanner.report().count("read by somebody") == 1


def test_no_triton_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, torch, nanscan\n"
        "nanscan.enable(torch.nn.Linear(2, 2)).close()\n"
        "assert 'triton' not in sys.modules and 'nanscan.triton_kernels' not in sys.modules\n"
        "assert not torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("backend", "library", "words"),
    [
        ("auto", "", "the CUDA library"), ("auto", "no nvcc", "no nvcc"), ("native", "no nvcc", "nothing: no nvcc"),
        ("eager", None, "waits for each tensor"),
    ],
)  # fmt: skip
def test_doctor_can_tell(world, backend: str, library: str | None, words: str) -> None:
    world(library, "")
    assert words in watching.forecast(None if library is None else Core(), backend)
