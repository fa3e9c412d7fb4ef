"""What the README shows is what happens."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path


def shape_of(text: str) -> str:
    """The text without line breaks, and every number as #: other processors round exp differently."""
    return re.sub(r"\d[\d.e+]*", "#", " ".join(text.split()))


def test_the_example_prints_the_report_shown(blocks, tmp_path: Path) -> None:
    # GIVEN the first example of the README, as a user would save it
    (tmp_path / "train.py").write_text(blocks("README.md", "python")[0])
    report, warning, _healthy = blocks("README.md", "text")[:3]
    # WHEN it runs
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NANSCAN_")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=900
    )
    # THEN it prints what the README says, and warns as it says
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:1] == report.splitlines()[:1]
    assert done.stdout.splitlines()[1] == report.splitlines()[1]
    assert shape_of(done.stdout) == shape_of(report)
    assert shape_of(warning) in shape_of(done.stderr)


def test_the_healthy_example_is_what_a_healthy_run_prints(blocks, tmp_path: Path) -> None:
    program = blocks("README.md", "python")[0].replace("step == 12", "False")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.stdout == blocks("README.md", "text")[2], done.stderr


def test_the_cause_is_the_one_shown(blocks, tmp_path: Path) -> None:
    # GIVEN the example of the section "Why it happened", as a user would save it
    (program,) = (block for block in blocks("README.md", "python") if "entropy" in block)
    (report,) = (block for block in blocks("README.md", "text") if "NS101" in block)
    (tmp_path / "train.py").write_text(program)
    # WHEN it runs, by its bare name: its folder would be part of the lines that are named, and of their length
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NANSCAN_")}
    run = "exec(compile(open('train.py').read(), 'train.py', 'exec'))"
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=900
    )
    # THEN it prints the block
    assert done.returncode == 0, done.stderr
    assert shape_of(done.stdout) == shape_of(report), f"printed now:\n{done.stdout}"


def test_every_example_is_python(blocks) -> None:
    for page in ("README.md", "docs/reading-a-report.md", "docs/architecture.md"):
        for program in blocks(page, "python"):
            ast.parse(program)


def test_variables_and_options_are_those_of_the_code(root: Path) -> None:
    """Every run-time variable and every option of enable() has its line."""
    import inspect

    import nanscan

    text = (root / "README.md").read_text()
    config = (root / "nanscan" / "config.py").read_text() + (root / "nanscan" / "_build.py").read_text()
    read = set(re.findall(r'env(?:iron)?\.get\("(NANSCAN\w*)"|_count\(env, "(NANSCAN\w*)"', config))
    variables = {name for pair in read for name in pair if name}
    assert len(variables) >= 8
    assert {name for name in variables if name not in text} == set()
    options = set(inspect.signature(nanscan.enable).parameters) - {"level"}
    assert {name for name in options if f"`{name}" not in text} == set()
