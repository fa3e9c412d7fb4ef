"""Compiles the CUDA source with g++: the stand-in library, and the script driver on fibers, with or without sanitizers.

Loaded by path (conftest.py does, and tests of other areas may): test folders are not importable by name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHIM = HERE / "shim"
LIBRARY = Path("buffer", "device_ring.cu")  # under csrc

FLAGS = ("-std=c++20", "-w", '-DHOST_SHIM="cuda_shim.h"', f"-I{SHIM}")
SOLO = ("-DSHIM_SOLO", "-DNANSCAN_CUDA_THREADS=1", "-DNANSCAN_CUDA_LANES=1")  # blocks of one thread
SANITIZERS = {
    "plain": (),
    "asan-ubsan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DSHIM_ASAN"),
    # -fno-builtin: GCC expands small memcpy in place, where ThreadSanitizer does not see it; called, it is intercepted
    "tsan": ("-fsanitize=thread", "-fno-builtin", "-DSHIM_TSAN"),
}


# Races and schedules are the same for every element type: one of each kind of sums, and pairs.
FEW = ("kF64, F64, 1", "kF32, F32, 1", "kC64, F32, 2")


class MissingTool(Exception):
    """A compiler is not here; the message says which."""


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        raise MissingTool(f"no C++ compiler: {command[0]} is not on PATH; set CXX")
    return command


def standin(folder: Path, csrc: Path = ROOT / "csrc") -> Path:
    """libnanscan_cuda for a machine without a GPU: the same source and entry points on CPU memory, as a shared library.

    Launches are queued, and run when nanscan_standin_run, nanscan_cuda_flush or nanscan_cuda_close says so (the extra
    entry points are declared at the end of shim/runtime.h). Blocks have one thread, so that a launch is a few function
    calls: thousands of small tensors a second.
    """
    library = folder / "libnanscan_cuda_standin.so"
    sources = ("-x", "c++", csrc / LIBRARY, SHIM / "runtime.cpp", SHIM / "solo.cpp")
    _run("-O1", *FLAGS, *SOLO, f"-I{csrc}", "-fPIC", "-shared", "-fvisibility=hidden", *sources, "-o", library)
    return library


def late(folder: Path, csrc: Path = ROOT / "csrc") -> Path:
    """The stand-in whose scans run at once and whose records are held back: see shim/late.cpp."""
    library = folder / "libnanscan_cuda_late.so"
    renamed = [
        f"-Dnanscan_cuda_{n}=inner_{n}" for n in ("open", "close", "scan", "scan_many", "poll", "flush", "counters")
    ]
    inner = folder / "late_inner.o"
    _run("-O1", *FLAGS, *SOLO, *renamed, f"-I{csrc}", "-fPIC", "-c", "-x", "c++", csrc / LIBRARY, "-o", inner)
    sources = ("-x", "c++", SHIM / "runtime.cpp", SHIM / "solo.cpp", SHIM / "late.cpp", "-x", "none", inner)
    _run("-O1", *FLAGS, *SOLO, f"-I{csrc}", "-fPIC", "-shared", *sources, "-o", library)
    return library


def driver(
    folder: Path,
    sanitizer: str = "plain",
    *,
    csrc: Path = ROOT / "csrc",
    elements: Sequence[str] = (),
    name: str = "drive",
    optimize: str = "-O1",
) -> Path:
    """The program shim/drive.cpp with every CUDA thread a fiber, in blocks of two warps.

    elements: names of the element types to compile, as in NANSCAN_CUDA_ELEMENTS: ("kF32, F32, 1",); () for all.
    """
    program = folder / f"{name}-{sanitizer}"
    flags = SANITIZERS[sanitizer]
    threads = "-DNANSCAN_CUDA_THREADS=64"
    only = [f"-DNANSCAN_CUDA_ELEMENTS(X)={' '.join(f'X({element})' for element in elements)}"] if elements else []
    # What is not under test is compiled once, and without sanitizers: see fibers.cpp.
    said = [flag for flag in flags if flag.startswith("-D")]
    others = [
        _object(folder, "fibers.cpp", threads, f"-I{csrc}", *said, suffix=f"-{sanitizer}"),
        _object(folder, "runtime.cpp", threads, f"-I{csrc}"),
        _object(folder, "drive.cpp", f"-I{csrc}"),
    ]
    source = ("-x", "c++", csrc / LIBRARY, "-x", "none")
    _run(optimize, "-g1", *FLAGS, threads, f"-I{csrc}", *only, *flags, *source, *others, "-o", program)
    return program


def _object(folder: Path, name: str, *flags: str, suffix: str = "") -> Path:
    made = folder / f"{Path(name).stem}{suffix}.o"
    if not made.exists():
        # -fno-tree-loop-distribute-patterns: no memset in place of loops, which the sanitizers would intercept
        _run("-O1", "-g1", *FLAGS, *flags, "-fno-tree-loop-distribute-patterns", "-c", SHIM / name, "-o", made)
    return made


def _run(*args: object) -> None:
    command = [*compiler(), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr[-4000:]}"
