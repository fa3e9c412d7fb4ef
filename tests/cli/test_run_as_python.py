"""``nanscan run`` changes nothing that a program can see: the same words run with and without it give the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LOOK = """
import atexit, json, os, pickle, sys, __main__
class Mine: pass
def late(): print("late", pickle.loads(pickle.dumps(Mine())).__class__.__module__, sys.modules["__main__"] is __main__)
atexit.register(late)
main = sys.modules["__main__"]
spec = main.__spec__ and main.__spec__.name
print(json.dumps([sys.argv, __name__, __file__, spec, sys.path[0], main.__dict__ is globals(), main.__package__]))
def f(x: int): pass
print(f.__annotations__)
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["look.py", "--lr", "3", "--", "-m", "x"], id="script"),
        pytest.param(["sub/look.py"], id="script-in-a-folder"),
        pytest.param(["-m", "pkg.look", "--level", "op"], id="module"),
        pytest.param(["-m", "pkg"], id="package"),
        pytest.param(["folder"], id="folder"),
    ],
)
def test_a_program_sees_the_same(python, nanscan, write, words: list[str]) -> None:
    for name in ("look.py", "sub/look.py", "pkg/look.py", "pkg/__main__.py", "folder/__main__.py"):
        write(name, LOOK)
    write("pkg/__init__.py", "")
    plain, watched = python(*words), nanscan("run", *words)
    assert plain.returncode == 0
    assert watched.stdout == plain.stdout
    assert watched.returncode == 0


def test_a_script_imports_what_lies_beside_it(nanscan, write) -> None:
    write("sub/beside.py", "value = 5")
    write("sub/a.py", "import beside; print(beside.value)")
    assert nanscan("run", "sub/a.py").stdout == "5\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param("import sys; sys.exit(7)", 7, id="exit-7"),
        pytest.param("import sys; sys.exit('no data')", 1, id="exit-with-words"),
        pytest.param("import sys; sys.exit()", 0, id="exit"),
        pytest.param("def f():\n    1 / 0\nf()", 1, id="exception"),
        pytest.param(
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e", 1, id="chained"
        ),
        pytest.param("raise KeyboardInterrupt", -signal.SIGINT, id="interrupt"),
        pytest.param("def broken(:", 1, id="syntax-error"),
        pytest.param(
            "import sys\nsys.excepthook = lambda *e: print('mine', e[0].__name__, file=sys.stderr)\n1 / 0",
            1,
            id="excepthook",
        ),
    ],
)
def test_the_end_passes_through(python, nanscan, write, body: str, code: int) -> None:
    write("a.py", body)
    plain, watched = python("a.py"), nanscan("run", "a.py")
    assert plain.returncode == code
    assert watched.returncode == code
    said = [line for line in plain.stderr.splitlines() if line]
    assert [line for line in watched.stderr.splitlines() if line in said] == said
    assert "nanscan:" in watched.stderr
    assert "site-packages" not in watched.stderr
    assert "runpy" not in watched.stderr


def test_a_traceback_through_a_module_starts_in_the_module(nanscan, write) -> None:
    write("mod.py", "def f():\n    1 / 0\nf()")
    watched = nanscan("run", "-m", "mod").stderr
    assert "mod.py" in watched.split("Traceback")[1].splitlines()[1]


WAIT = """
import time
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_it_after_the_report(write, tmp_path: Path, environment, number: int) -> None:
    write("wait.py", WAIT)
    process = subprocess.Popen(
        [sys.executable, "-m", "nanscan", "run", "wait.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background of a shell ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -number
    assert said.count("nanscan:") == 1
    assert said.count("KeyboardInterrupt") == (number == signal.SIGINT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_report(nanscan, write: Callable[[str, str], Path]) -> None:
    write("a.py", "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)")
    assert nanscan("run", "a.py").stderr.count("nanscan:") == 1
