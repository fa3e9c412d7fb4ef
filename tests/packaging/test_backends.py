"""Which core a process gets: built at install, compiled now, or plain PyTorch with one warning and both causes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nanscan import backends, config
from nanscan.backends.native import NoCore
from nanscan.errors import NanscanError, NanscanWarning

CAUSES = ("built at install: first cause", "compiled at first use: second cause")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has chosen no backend yet."""
    monkeypatch.setattr(backends, "_chosen", None)
    for name in [name for name in os.environ if name.startswith("NANSCAN")]:
        monkeypatch.delenv(name)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch, forgetful: None) -> list[config.Settings]:
    """No way leads to the core; the list grows by one per try."""
    seen: list[config.Settings] = []

    def load_core(settings: config.Settings) -> tuple[ModuleType, str]:
        seen.append(settings)
        raise NoCore(CAUSES)

    monkeypatch.setattr(backends, "load_core", load_core)
    return seen


def test_plain_pytorch_comes_with_one_warning_and_both_causes(tries: list[config.Settings]) -> None:
    def public_function() -> backends.Backend:
        return backends.get()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = public_function(), public_function()
    assert first is second
    assert (first.name, first.core) == ("eager", None)
    assert len(tries) == 1
    assert [w.category for w in caught] == [NanscanWarning]
    for part in (*CAUSES, "NANSCAN_BACKEND=eager"):
        assert part in str(caught[0].message)
    assert (caught[0].filename, caught[0].lineno) == (__file__, public_function.__code__.co_firstlineno + 5)


@pytest.mark.parametrize("variable", ["NANSCAN_REQUIRE_NATIVE=1", "NANSCAN_BACKEND=native"])
def test_a_required_core_that_is_missing_is_an_error_each_time(
    tries: list[config.Settings], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    for _ in range(2):
        with pytest.raises(NanscanError, match=f"^{variable}, but there is no compiled core") as caught:
            backends.get()
        for part in (*CAUSES, "unset the variable"):
            assert part in str(caught.value)
    assert len(tries) == 1


def test_eager_by_choice_tries_nothing_and_says_nothing(
    tries: list[config.Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCAN_BACKEND", "eager")
    assert backends.get().name == "eager"  # a NanscanWarning would be an error here
    assert tries == []


def test_contradicting_variables_are_refused(tries: list[config.Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCAN_BACKEND", "eager")
    monkeypatch.setenv("NANSCAN_REQUIRE_NATIVE", "1")
    with pytest.raises(NanscanError, match="contradict each other; unset one"):
        backends.get()


def test_the_same_values_from_both_backends(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.tensor([[1.0, float("nan")], [0.0, -3.0]])
    native = backends.get()
    if native.core is None:
        pytest.skip(native.why)
    monkeypatch.setattr(backends, "_chosen", None)
    monkeypatch.setenv("NANSCAN_BACKEND", "eager")
    eager = backends.get()
    for field in ("n", "n_nan", "n_zero", "min", "max", "first_bad", "flags", "dtype"):
        assert native.scan_record(tensor)[field][0] == eager.scan_record(tensor)[field][0], field


def test_both_backends_refuse_with_the_same_class(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from nanscan.backends.eager import UnscannableTensor

    with pytest.raises(UnscannableTensor):
        backends.get().scan_record(torch.tensor([1, 2]))
    monkeypatch.setattr(backends, "_chosen", None)
    monkeypatch.setenv("NANSCAN_BACKEND", "eager")
    with pytest.raises(UnscannableTensor):
        backends.get().scan_record(torch.tensor([1, 2]))


# From here on whole processes: a copy of the package without a prebuilt core, and a core that compiles in a second.

LOAD = (
    "import nanscan.backends as b; got = b.get(); "
    "print(got.name, '|', got.why, '|', got.core and got.core.torch_version)"
)


def test_the_core_is_compiled_at_first_use_into_the_cache(bare_package: Path, run_python) -> None:
    done = run_python(LOAD, path=bare_package)
    assert done.stdout.startswith("native | compiled on this machine"), done.stderr
    assert done.stdout.endswith(f"| {torch.__version__}\n")
    assert str(bare_package / "cache") in done.stdout
    again = run_python(LOAD, path=bare_package)
    assert again.stdout == done.stdout
    assert again.stderr == ""


def test_a_core_for_another_torch_is_passed_over_unloaded(bare_package: Path, run_python) -> None:
    # GIVEN a prebuilt core that carries another version's mark and is no library at all
    import nanscan._build as build

    (bare_package / "nanscan" / build.CORE).write_bytes(build.MARK.encode() + b"1.0.0\0")
    done = run_python(LOAD, path=bare_package, NANSCAN_BUILD="none")
    assert done.stdout.startswith("eager | "), done.stderr
    assert f"built at install: it was built for torch 1.0.0, this is torch {torch.__version__}" in done.stderr
    assert "compiled at first use: switched off by NANSCAN_BUILD=none" in done.stderr


def test_a_core_that_does_not_load_is_passed_over_with_its_cause(bare_package: Path, run_python) -> None:
    import nanscan._build as build

    (bare_package / "nanscan" / build.CORE).write_bytes(build.MARK.encode() + torch.__version__.encode() + b"\0")
    done = run_python(LOAD, path=bare_package)
    assert done.stdout.startswith("native | compiled on this machine"), done.stderr


def test_nothing_works_without_a_compiler_but_it_says_so_once(bare_package: Path, run_python) -> None:
    done = run_python(LOAD + "; b.get()", path=bare_package, CXX="/no/such/compiler")
    assert done.stdout.startswith("eager | ")
    assert done.stderr.count("NanscanWarning") == 1
    assert "built at install: this installation carries none for this Python" in done.stderr
    assert "compiled at first use: CXX='/no/such/compiler' is not there" in done.stderr


def test_require_native_without_a_build_is_a_plain_error(bare_package: Path, run_python) -> None:
    done = run_python(LOAD, path=bare_package, NANSCAN_BUILD="none", NANSCAN_REQUIRE_NATIVE="1")
    assert done.returncode == 1
    assert "NanscanError: NANSCAN_REQUIRE_NATIVE=1, but there is no compiled core" in done.stderr
    assert "switched off by NANSCAN_BUILD=none" in done.stderr
