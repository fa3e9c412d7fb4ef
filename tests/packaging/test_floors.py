"""The floor rule, on this repository and on planted violations."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_package_keeps_the_floors(floors: ModuleType, root: Path) -> None:
    assert floors.check_python(root) == []


def test_the_sources_keep_the_floors(floors: ModuleType, root: Path) -> None:
    assert floors.check_csrc(root) == []


def test_no_file_is_long_without_a_reason(floors: ModuleType, root: Path) -> None:
    assert floors.check_lengths(root) == []


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        pytest.param("nanscan/record.py", "import nanscan.report", "imports nanscan.report: up from floor 0", id="up"),
        pytest.param("nanscan/buffer/ring.py", "from nanscan.hooks import x", "up from floor 2 to floor 3", id="from"),
        pytest.param("nanscan/buffer/ring.py", "from nanscan import hooks", "nanscan.hooks: up", id="from-package"),
        pytest.param("nanscan/buffer/ring.py", "from ..hooks.plain import x", "nanscan.hooks.plain: up", id="relative"),
        pytest.param("nanscan/buffer/__init__.py", "from ..hooks import x", "nanscan.hooks: up", id="relative-init"),
        pytest.param("nanscan/sites.py", "from nanscan import enable", "imports nanscan: up", id="top-level-name"),
        pytest.param("nanscan/sites.py", "def f():\n    import nanscan.cli", "sites.py:2: ", id="inside-a-function"),
        pytest.param(
            "nanscan/sites.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nanscan.events import Event",
            "up from floor 0 to floor 3",
            id="for-types-only",
        ),
        pytest.param("nanscan/hooks/a.py", "import nanscan.events", "never import each other", id="write-reads"),
        pytest.param("nanscan/events/a.py", "import nanscan.hooks", "never import each other", id="read-writes"),
        pytest.param("nanscan/report/a.py", "import nanscan.hooks.b", "never import each other", id="report-writes"),
        pytest.param("nanscan/helpers.py", "", "nanscan.helpers stands on no floor", id="unknown-area"),
        pytest.param("triton_kernels/scan.py", "import nanscan.buffer", "up from floor 1 to floor 2", id="triton"),
    ],
)
def test_a_wrong_import_is_found(floors: ModuleType, tmp_path: Path, path: str, code: str, complaint: str) -> None:
    found = floors.check_python(plant(tmp_path, {path: code}))
    assert len(found) == 1
    assert complaint in found[0]
    assert found[0].startswith(path)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("nanscan/report/a.py", "from nanscan.events.event import Event", id="down"),
        pytest.param("nanscan/config.py", "from nanscan import errors", id="same-floor"),
        pytest.param("nanscan/hooks/a.py", "from . import b\nfrom .b import c\nimport nanscan_x", id="inside-its-area"),
        pytest.param("nanscan/__init__.py", "from nanscan.scanner.scanner import enable", id="the-package-itself"),
        pytest.param("nanscan/scanner/a.py", "import nanscan.hooks\nimport nanscan.events", id="scanner-joins-both"),
    ],
)
def test_a_right_import_passes(floors: ModuleType, tmp_path: Path, path: str, code: str) -> None:
    assert floors.check_python(plant(tmp_path, {path: code})) == []


HEADERS = {f"csrc/{name}": "" for name in ("record/record.h", "scan/scan.h", "buffer/ring.h", "hooks/guard.h")}


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        pytest.param("csrc/scan/a.cpp", '#include "hooks/guard.h"', "up from floor 1 to floor 3", id="up"),
        pytest.param("csrc/record/a.h", '// x\n#include "../scan/scan.h"', "record/a.h:2: ", id="relative"),
        pytest.param("csrc/record/a.h", "  #  include <scan/scan.h>", "up from floor 0", id="angle-brackets"),
        pytest.param("csrc/scan/scan_cpu.cpp", "#include <ATen/Parallel.h>", "no torch header", id="torch-in-kernel"),
        pytest.param("csrc/scan/scan_cuda.cu", "#include <c10/core/Device.h>", "no torch header", id="torch-in-cuda"),
        pytest.param("csrc/buffer/ring.h", "#include <torch/torch.h>", "no torch header", id="torch-in-buffer"),
        pytest.param("csrc/scan/a.cpp", '#include "ATen/ATen.h"', "no torch header", id="torch-in-quotes"),
        pytest.param("csrc/scan/a.cpp", '#include "scan/gone.h"', "not under csrc/", id="nowhere"),
        pytest.param("csrc/util/a.h", "", "csrc/util stands on no floor", id="unknown-area"),
    ],
)
def test_a_wrong_include_is_found(floors: ModuleType, tmp_path: Path, path: str, code: str, complaint: str) -> None:
    found = floors.check_csrc(plant(tmp_path, {**HEADERS, path: code}))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("csrc/hooks/a.cpp", '#include "scan/scan.h"\n#include "guard.h"\n#include <vector>', id="down"),
        pytest.param("csrc/scan/scan.cpp", "#include <ATen/Parallel.h>", id="torch-in-dispatch"),
        pytest.param("csrc/scan/scan_bindings.cpp", "#include <torch/csrc/utils/pybind.h>", id="torch-in-bindings"),
        pytest.param("csrc/hooks/a.cpp", "#include <ATen/record_function.h>", id="torch-in-hooks"),
        pytest.param("csrc/bindings.cpp", '#include "hooks/guard.h"', id="bindings-on-top"),
    ],
)
def test_a_right_include_passes(floors: ModuleType, tmp_path: Path, path: str, code: str) -> None:
    assert floors.check_csrc(plant(tmp_path, {**HEADERS, path: code})) == []


def test_a_long_file_has_to_say_why(floors: ModuleType, tmp_path: Path) -> None:
    body = "x = 1\n" * 401
    plant(
        tmp_path,
        {"nanscan/a.py": body, "csrc/b.h": "// Long: one table.\n" + body, "tests/c.py": "x = 1\n" * 400},
    )
    assert floors.check_lengths(tmp_path) == ["nanscan/a.py: 401 lines; split it, or say in line 1 why it is long"]
