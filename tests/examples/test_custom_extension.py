"""examples/custom_extension: built, and its three ways to find the NaN checked."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanscan import backends

FOLDER = Path(__file__).parents[2] / "examples" / "custom_extension"
NATIVE = backends.get().core is not None
pytestmark = pytest.mark.slow  # a C++ extension with torch's binding of tensors: half a minute on one core


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """run.py, loaded by its path."""
    spec = importlib.util.spec_from_file_location("custom_extension_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def ext(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The extension, built once."""
    return example.build(str(tmp_path_factory.mktemp("demo_ext")))


def line_of(text: str) -> str:
    """``run.py:12`` of the one line that holds `text`."""
    lines = (FOLDER / "run.py").read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if text in line)
    return f"run.py:{number}"


def first_of(example: ModuleType, ext: Any, way: str, level: str = "op") -> Any:
    scanner = example.train(example.make(way, ext), level)
    first = scanner.first
    assert first is not None
    assert (first.severity, first.step, first.module, first.phase, first.kind) == ("error", 0, "mix", "forward", "nan")
    return first


@pytest.mark.skipif(not NATIVE, reason="the op level needs the compiled core")
class TestOpLevel:
    def test_a_registered_op_is_named_like_any_other(self, example: ModuleType, ext: Any) -> None:
        first = first_of(example, ext, "registered")
        assert (first.role, first.op, first.stats.nan) == ("origin", "demo_ext::rms_scale", 8)
        assert line_of("return h + torch.ops.demo_ext.rms_scale") in first.source

    def test_a_raw_call_is_found_by_what_is_known_around_it(self, example: ModuleType, ext: Any) -> None:
        first = first_of(example, ext, "raw")
        written, called = line_of("out = torch.zeros_like(h)"), line_of("self.ext.smooth_into(")
        read = line_of("return h + out")
        assert (first.role, first.op, first.last_clean) == ("external", "aten::add", f"mix, {written}")
        assert read in first.source
        assert first.evidence[2:4] == (
            f"finite when last written at mix, {written}, non-finite when read at aten::add in mix, {read}, "
            "no observed write in between",
            f"in between the source calls: self.ext.smooth_into(h.detach(), out) (line {called.partition(':')[2]})",
        )

    def test_a_wrapped_call_is_named_exactly(self, example: ModuleType, ext: Any) -> None:
        first = first_of(example, ext, "wrapped")
        assert (first.role, first.op) == ("origin", "demo_ext::smooth_into")
        assert line_of("self.ext.smooth_into(") in first.source
        assert (first.stats.nan, first.first_bad_index) == (1, 31)


@pytest.mark.parametrize("session", ["native", "plain"])
def test_a_wrapped_call_is_named_at_module_level(
    example: ModuleType, ext: Any, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if session == "plain":
        monkeypatch.setenv("NANSCAN_BACKEND", "eager")
        monkeypatch.delenv("NANSCAN_REQUIRE_NATIVE", raising=False)
        monkeypatch.setattr(backends, "_chosen", None)
    elif not NATIVE:
        pytest.skip("nanscan._C is not built here")
    assert (backends.get().core is None) is (session == "plain")
    first = first_of(example, ext, "wrapped", level="module")
    assert (first.role, first.op, first.stats.nan) == ("origin", "demo_ext::smooth_into", 1)
    assert first.chain == ("demo_ext::smooth_into", "mix", "upper", "Net")
