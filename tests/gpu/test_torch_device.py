"""Devices without a library: torch's operators, or a Python function that launches a kernel, behind the same hooks.

CPU memory stands in for the device's, so the programs are those of test_device_path.py and test_device_ops.py; what
they find has to be what they find on the CPU. See csrc/hooks/torch_device.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nanscan.record import DType

TESTS = Path(__file__).resolve().parents[1]
ORACLE = TESTS / "scan" / "conftest.py"
PROVEN_BY = ["torch", "kernel"]
TRAP = "body.1.inner.1"


@pytest.fixture(scope="module")
def core() -> Any:
    from nanscan import backends

    found = backends.get().core
    if found is None:
        pytest.skip(f"the device path is part of the compiled core: {backends.get().why}")
    return found


@pytest.fixture(scope="module")
def path_tests() -> Any:
    """test_device_path.py, for how it compares answers."""
    path = Path(__file__).with_name("test_device_path.py")
    spec = importlib.util.spec_from_file_location("nanscan_device_path", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(folder: Path) -> tuple[int, str]:
    """Step and module of the one event in a log."""
    (log,) = folder.iterdir()
    (event,) = [line["data"] for line in map(json.loads, log.read_text().splitlines()) if line["kind"] == "event"]
    return event["step"], event["module"]


# ---- the operators alone


class Operators(TorchDispatchMode):
    """Names of those that run; views are not launched, and are left out."""

    VIEWS = ("view", "select", "narrow", "slice", "unsqueeze", "detach", "view_as_real", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in self.VIEWS and name != "empty":
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.float32, 24), (torch.bfloat16, 24), (torch.float8_e5m2, 24), (torch.float8_e4m3fn, 23),
        (torch.float8_e4m3fnuz, 24), (torch.float64, 30), (torch.complex64, 32), (torch.complex128, 38),
    ],
)  # fmt: skip
def test_nothing_is_read_back(core, dtype: torch.dtype, most: int) -> None:
    """A meta tensor has no values: item(), a copy to the host or a shape that depends on values would be an error."""
    tensor, rows = torch.empty(1000, dtype=dtype, device="meta"), torch.empty(1, 16, dtype=torch.int64, device="meta")
    with torch.no_grad(), Operators() as operators:
        assert core.reduce(tensor, int(DType.from_torch_name(str(dtype))), rows) == 1
    assert len(operators.names) <= most, operators.names
    assert not {"_local_scalar_dense", "nonzero", "item", "masked_select", "is_nonzero"} & set(operators.names)


def test_a_tensor_is_read_in_pieces(core) -> None:
    n = (1 << 22) * 3 + 1
    rows = torch.empty(8, 16, dtype=torch.int64, device="meta")
    assert core.reduce(torch.empty(n, device="meta"), int(DType.F32), rows) == 4
    assert core.reduce(torch.empty(2, n, device="meta").t(), int(DType.F32), rows) == 7


# ---- records


def test_values(answer_of) -> None:
    found = answer_of("torch_device", "values", ORACLE, device="torch")
    assert found["n"] > 400
    assert found["wrong"] == []


def test_precision(answer_of) -> None:
    assert answer_of("torch_device", "precision", ORACLE, device="torch") == []


@pytest.mark.parametrize("device", PROVEN_BY)
def test_pieces(answer_of, device: str) -> None:
    assert answer_of("torch_device", "pieces", ORACLE, device=device) == {"flat": [], "wide": [], "many": []}


@pytest.mark.parametrize("device", PROVEN_BY)
def test_nobody_sees_a_launch(answer_of, device: str) -> None:
    found = answer_of("torch_device", "unseen", device=device)
    assert found.pop("profiled") == []
    assert found.pop("subnormal") == 1
    assert found.pop("grads") == [True, 0]
    assert all(found.values()), found


def test_what_finds_no_room_is_counted(answer_of) -> None:
    found = answer_of("torch_device", "no_room", device="torch")
    assert found["scanned"] == [True] * 5
    assert found["dropped"] == 2  # the huge one, which has a place in the ring, and the last one, which has none
    assert found["n"] == [3, 0, 3, 3]
    assert (found["after"], found["pending"]) == ([2], 0)


def test_what_is_captured_is_counted(answer_of) -> None:
    assert answer_of("torch_device", "captured", device="torch") == {
        "unscanned": 2, "before": True, "after": True, "failure": None
    }  # fmt: skip


# ---- programs


@pytest.mark.parametrize("device", PROVEN_BY)
def test_the_verdicts_are_those_of_the_cpu(answer_of, path_tests, device: str) -> None:
    cpu, late = answer_of("verdicts", device=False)["cpu"], answer_of("verdicts", device=device)
    for way in path_tests.WAYS:
        for training in path_tests.TRAININGS:
            expected = {name: fact for name, fact in cpu[training].items() if name != "scans"}
            found = {name: fact for name, fact in late[way][training].items() if name != "scans"}
            assert path_tests.differences(expected, found, f"{way}, {training}") == []
            assert late[way][training]["scans"] > 100


@pytest.mark.slow
def test_the_corpus_at_module_level(answer_of) -> None:
    found = answer_of("cases", TESTS / "cases", device="torch")
    assert (found["wrong"], found["healthy"], found["nonfinite"]) == ({}, 16, 32)


@pytest.mark.slow
def test_the_corpus_at_operation_level(answer_of) -> None:
    cases = answer_of("ops", "corpus", TESTS / "cases", device="torch")
    assert len(cases) > 60
    assert {name: case["wrong"] for name, case in cases.items() if case["wrong"] and not case["behind"]} == {}
    assert {tuple(case["wrong"]) for case in cases.values() if case["behind"]} <= {("role",), ()}


@pytest.mark.parametrize("device", PROVEN_BY)
def test_a_fault_in_one_thread_of_four(answer_of, device: str) -> None:
    assert answer_of("ops", "threads", device=device) == [["aten::log", "error"]]


def test_healthy_steps_reach_no_judge(answer_of) -> None:
    found = answer_of("ops", "healthy", device="torch")
    assert (found["events"], found["fed"]) == ([], 0)


@pytest.mark.parametrize("device", PROVEN_BY)
def test_training_is_the_same_to_the_bit(answer_of, device: str) -> None:
    free, watched = answer_of("harmless", device=False), answer_of("harmless", device=device)
    for model in ("gpt", "cnn"):
        assert watched[model]["steps"] == free[model]["steps"]
        assert (watched[model]["first"], watched[model]["failure"]) == ("None", None)
    assert answer_of("ops", "same_bits", device=device) == answer_of("ops", "same_bits", device=False)


@pytest.mark.parametrize("device", PROVEN_BY)
def test_nothing_is_kept_while_its_record_is_held(answer_of, device: str) -> None:
    found = answer_of("harmless", device=device)["retained"]
    assert (found["seen"] > 40, found["pending"] >= 50, found["alive"]) == (True, True, 0)


@pytest.mark.parametrize("device", PROVEN_BY)
def test_several_scanners_threads_and_a_forked_child(answer_of, device: str) -> None:
    found = answer_of("together", device=device)
    two = found["two_scanners"]
    assert two == {"one": ["forward", 2, TRAP], "two": ["backward", 1, TRAP], "dropped": 0}
    assert (found["threads"]["faults"], found["threads"]["failure"], found["threads"]["pending"]) == ([], None, 0)
    assert found["threads"]["first"] == ["data", 0, "inp"]
    assert (found["fork"]["status"], found["fork"]["child"], found["fork"]["first"]) == (0, "0 0", None)


def test_nothing_waits_and_verdicts_come_when_records_do(answer_of) -> None:
    found = answer_of("steps", device="kernel")
    waits = found["nothing_waits"]
    assert waits["held"] == [waits["held"][0] * (step + 1) for step in range(50)]
    assert (waits["early"], waits["error steps"][0], waits["dropped"]) == ([], 2, 0)
    assert found["raising"] == [[4, False, 2, TRAP]]
    assert found["stopping"] == ["forward 3", "step 3", "stopped for 2"]
    full = found["full_ring"]
    assert (full["launched when full"], full["finite"], full["marks"], full["first"]) == (0, True, 0, [32, TRAP])


@pytest.mark.parametrize("how", ["close", "with", "exit"])
def test_a_program_that_ends_with_records_held_has_its_verdict(start_program, tmp_path, how: str) -> None:
    done = start_program("ends", tmp_path / "log", how, device="torch")
    assert done.returncode == 0, done.stderr
    assert told(tmp_path / "log") == (2, TRAP)


# ---- kernels that are launched by Python


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own interpreter runs its kernels, in the program's process, on the CPU."""
    pytest.importorskip("triton", reason="triton is not installed: pip install triton==3.8.0")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::RuntimeWarning")


@pytest.mark.slow
def test_values_by_triton(answer_of, interpreted) -> None:
    found = answer_of("torch_device", "values", ORACLE, "few", device="triton")
    assert found["n"] > 90
    assert found["wrong"] == []


@pytest.mark.slow
def test_nobody_sees_a_launch_of_triton(answer_of, interpreted) -> None:
    found = answer_of("torch_device", "unseen", device="triton")
    assert found.pop("profiled") == []
    assert found.pop("subnormal") == 1
    assert found.pop("grads") == [True, 0]
    assert all(found.values()), found


@pytest.mark.parametrize("which", ["forward", "gradients", "update", "for good"])
def test_a_launch_that_fails_spoils_its_step_only(answer_of, which: str) -> None:
    found = answer_of("steps", device="kernel")["lost"][which]
    assert (found["finite"], found["failure"], found["steps"], found["in report"]) == (True, None, 5, True)
    assert "planted" in found["notes"][0]
    assert found["unscanned"] > 0
    assert (found["pending"], found["first"]) == (0, None) if which == "for good" else found["first"] == 4


def test_operators_take_over_from_a_kernel_that_fails(answer_of) -> None:
    found = answer_of("torch_device", "failing", device="either")
    assert "planted" in found["why"]
    assert (found["found"], found["unscanned"], found["failure"]) == ("data", 0, None)


def test_a_kernel_by_name_is_that_kernel_or_nothing(answer_of) -> None:
    found = answer_of("torch_device", "failing", device="kernel")
    assert found["unscanned"] == 1
    assert (found["found"], found["failure"]) == ("data", None)


def test_ctrl_c_in_a_launch_stops_the_program(answer_of) -> None:
    assert answer_of("torch_device", "interrupted", device="kernel") == "interrupted"


@pytest.mark.parametrize("device", PROVEN_BY)
def test_the_gil_and_our_locks_do_not_wait_for_each_other(answer_of, device: str) -> None:
    found = answer_of("torch_device", "asked_meanwhile", device=device)
    assert (found["faults"], found["records"], found["pending"]) == ([], 600, 0)
    assert found["sums"] == {str(site): sum(range(200)) for site in range(3)}
