"""`import nanscan` is cheap and alone: no compiler, no CUDA, no Triton, and no claim on somebody else's name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

WATCHED = """
import sys
started = []
def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        started.append((event, args[:2]))
sys.addaudithook(watch)
"""


def test_import_starts_no_process_and_no_cuda(run_python) -> None:
    done = run_python(
        WATCHED + "import nanscan\n"
        "torch = sys.modules.get('torch')\n"
        "assert started == [], started\n"
        "assert torch is None or not torch.cuda.is_initialized()\n"
        "assert 'triton' not in sys.modules and 'nanscan._C' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_settings_are_read_without_torch(run_python) -> None:
    done = run_python(
        "import sys, nanscan.config as c; c.read_env(); c.check_options(); assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_version_has_one_source(run_python) -> None:
    done = run_python(
        "import importlib.metadata as m, nanscan, nanscan._version as v\n"
        "assert m.version('nanscan') == nanscan.__version__ == v.__version__, (m.version('nanscan'), v.__version__)"
    )
    assert done.returncode == 0, done.stderr


def test_the_repository_root_is_not_importable(root: Path) -> None:
    """How pytest itself was started is under test here: `python -m pytest` would fail this, and rightly."""
    assert str(root) not in [str(Path(entry or ".").resolve()) for entry in sys.path]


def test_triton_kernels_is_nobodys_name(root: Path) -> None:
    """That name belongs to a package of the Triton repository; programs probe for it with find_spec."""
    spec = importlib.util.find_spec("triton_kernels")
    assert spec is None or root not in Path(spec.origin or "/").parents


def test_triton_kernels_refuses_the_bare_name(run_python, root: Path) -> None:
    done = run_python(f"import sys; sys.path.insert(0, {str(root)!r}); import triton_kernels")
    assert done.returncode != 0
    assert "this folder is nanscan.triton_kernels and was about to be loaded as 'triton_kernels'" in done.stderr
    assert "run the pytest script, not `python -m pytest`" in done.stderr


def test_triton_kernels_loads_no_triton(run_python) -> None:
    done = run_python(
        "import sys, importlib.util, nanscan.triton_kernels\n"
        "assert 'triton' not in sys.modules and 'triton_kernels' not in sys.modules\n"
        "assert importlib.util.find_spec('nanscan.triton_kernels.launch') is not None"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["csrc", "tests", "benchmarks", "examples", "setup", "triton_kernels"])
def test_no_other_top_level_name_is_taken(run_python, name: str) -> None:
    done = run_python(
        "import importlib.util, sys; sys.path.remove('')\n"
        f"found = importlib.util.find_spec({name!r}); print(found and found.origin)"
    )
    assert done.returncode == 0, done.stderr
    assert "nanscan" not in done.stdout
    assert str(Path(__file__).parents[2]) not in done.stdout
