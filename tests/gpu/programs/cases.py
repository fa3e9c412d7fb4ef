"""The case corpus at module level, every record held until somebody waits for it. Judged by tests/cases/score.py."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

from late import answer, start


def main() -> None:
    late = start()
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location("nanscan_case_score", folder / "score.py")
    assert spec is not None
    assert spec.loader is not None
    score: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    wrong: dict[str, Any] = {}
    n = {"healthy": 0, "nonfinite": 0}
    for path in sorted(folder.glob("c[0-9][0-9]_*.py")):
        expect = score.load(path).EXPECT
        group = score.group_of(expect)
        if group not in n or (group == "nonfinite" and expect.get("module") is None):
            continue
        n[group] += 1
        expect, first, alarms = score.run(path, "module")
        verdict = score.judge(expect, first, alarms, "module")
        if not all(verdict.values()):
            wrong[path.stem] = [str(first), [field for field, right in verdict.items() if not right]]
    answer({**n, "wrong": wrong, "launches": 0 if late is None else late.launches})


if __name__ == "__main__":
    main()
