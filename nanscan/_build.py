"""How the compiled core ``nanscan._C`` and the CUDA library beside it are built: sources, flags, and the runs that make
them.

setup.py loads this file by its path, in an environment that may hold neither torch nor numpy; backends/on_demand.py
imports it. So: standard library only, and torch only as an argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

BUILD_MODES = ("auto", "cpu", "cuda", "none")
CORE = "_C" + EXTENSION_SUFFIXES[0]  # the suffix names Python's ABI: a core for another Python is never picked up

# C++20: torch's headers ask for it since 2.12 and accept it in 2.11.
# NDEBUG: at::RecordFunction has a member that exists only without it, and the torch binary was built with it.
# No -ffast-math: it lets the compiler assume that what we look for cannot happen.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-DTORCH_EXTENSION_NAME=_C",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-fno-math-errno",
    "-Wall",
)
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")
SHARED = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
# The CUDA library knows neither torch nor Python, so one file serves all of them: `_C` loads it where it is.
CUDA_LIBRARY = "libnanscan_cuda.so"
CUDA_SOURCE = "buffer/device_ring.cu"
CUDA_AREAS = ("record", "scan", "buffer")  # under csrc: all it may include
CUDA_ARCHITECTURES = (80, 90, 100)  # 8.6 and 8.9 run the first, 10.3 the last; 12.x compiles the PTX when it loads it
# static cudart: nothing of CUDA is needed to load the library; without a driver its calls return an error.
# A kernel that spills registers has lost what it was written for: an error, not a slow library.
CUDA_FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-cudart",
    "static",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden",
    "-Xptxas",
    "-Werror,-warn-spills",
    *(f"-gencode=arch=compute_{cc},code=sm_{cc}" for cc in CUDA_ARCHITECTURES),
    f"-gencode=arch=compute_{CUDA_ARCHITECTURES[-1]},code=compute_{CUDA_ARCHITECTURES[-1]}",
)
BUILD_TIMEOUT_S = 1800.0
MARK = "nanscan core built for torch "  # in the core's bytes, with the version behind it


class BuildError(RuntimeError):
    """The core could not be built. The message is one line: what is missing, or the compiler's first error.

    Args:
        message: that line.
        output: all that the compiler said.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything one build depends on."""

    csrc: Path
    compiler: tuple[str, ...]  # argv prefix: CXX may hold "ccache g++"
    compiler_version: str
    ninja: str
    torch_version: str
    flags: tuple[str, ...]
    includes: tuple[str, ...]
    library_dir: Path

    @property
    def key(self) -> str:
        """Name of the cache entry: torch and Python in the clear; compiler, flags and sources as a hash (no paths)."""
        digest = hashlib.sha256()
        for text in (self.compiler_version, *self.flags, *SHARED, *LIBRARIES, CORE):
            digest.update(text.encode() + b"\0")
        for path in sorted(p for p in self.csrc.rglob("*") if p.suffix in (".cpp", ".h")):
            digest.update(path.relative_to(self.csrc).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return f"torch-{self.torch_version}-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"


def read_build_env(environ: Mapping[str, str]) -> tuple[str, bool]:
    """NANSCAN_BUILD and NANSCAN_REQUIRE_NATIVE, validated: (mode, require_native)."""
    mode = environ.get("NANSCAN_BUILD") or "auto"
    if mode not in BUILD_MODES:
        raise ValueError(f"NANSCAN_BUILD={mode!r} is unknown; use one of {', '.join(BUILD_MODES)}")
    require = environ.get("NANSCAN_REQUIRE_NATIVE") or "0"
    if require not in ("0", "1"):
        raise ValueError(f"NANSCAN_REQUIRE_NATIVE={require!r} is unknown; use 0 or 1")
    return mode, require == "1"


def csrc_dir() -> Path:
    """The C++ sources: inside the package in an installed wheel, beside it in a checkout."""
    package = Path(__file__).absolute().parent
    inside = package / "_csrc"
    return inside if inside.is_dir() else package.parent / "csrc"


def sources(csrc: Path) -> list[Path]:
    """Every translation unit of the core, sorted. A new .cpp under csrc/ joins by being there."""
    return sorted(csrc.rglob("*.cpp"))


def recipe(torch: ModuleType, environ: Mapping[str, str]) -> Recipe:
    """Find compiler, ninja, headers and sources; raises BuildError naming the first that is missing."""
    csrc = csrc_dir()
    if os.name != "posix":
        raise BuildError("the native core builds on Linux and macOS only")
    if not sources(csrc):
        raise BuildError(f"no C++ sources in {csrc}")
    compiler = _compiler(environ)
    python_include = Path(sysconfig.get_path("include"))
    if not (python_include / "Python.h").is_file():
        raise BuildError(f"no Python.h in {python_include} (install Python's development headers)")
    assert torch.__file__ is not None
    torch_dir = Path(torch.__file__).parent
    if not (torch_dir / "include" / "ATen").is_dir():
        raise BuildError(f"no torch headers in {torch_dir / 'include'}")
    version = _first_line([*compiler, "--version"])
    return Recipe(
        csrc=csrc,
        compiler=compiler,
        compiler_version=version,
        ninja=_ninja(),
        torch_version=str(torch.__version__),
        flags=(
            *FLAGS,
            # at::parallel_for is a header, and serial without it. Compile only: GCC's runtime comes with torch.
            *(("-fopenmp",) if torch.backends.openmp.is_available() and "clang" not in version.lower() else ()),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f'-DNANSCAN_TORCH_VERSION="{torch.__version__}"',
        ),
        # -isystem: warnings inside torch's headers are not ours to mend
        includes=(f"-I{csrc}", "-isystem", str(torch_dir / "include"), "-isystem", str(python_include)),
        library_dir=torch_dir / "lib",
    )


def compile_core(recipe: Recipe, folder: Path, environ: Mapping[str, str]) -> Path:
    """Build in `folder` and return the core's path. Objects stay there: a second call compiles only what changed.

    The compiler's whole output is left in folder/build.log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = f'extern __attribute__((used)) const char nanscan_mark[] = "{MARK}{recipe.torch_version}";\n'
    _write_if_changed(folder / "mark.cpp", mark)
    _write_if_changed(folder / "build.ninja", ninja_file(recipe))
    jobs = environ.get("MAX_JOBS") or str(min(os.cpu_count() or 1, 8))  # one torch translation unit takes about 1 GB
    command = [recipe.ninja, "-C", str(folder), "-j", jobs]
    log = folder / "build.log"
    try:
        with log.open("w") as out:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=BUILD_TIMEOUT_S
            )
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler did not finish within {BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        output = log.read_text(errors="replace")
        raise BuildError(first_error(output), output)
    return folder / CORE


def find_nvcc(environ: Mapping[str, str]) -> str:
    """The CUDA compiler: NVCC names it, else it is on PATH or under CUDA_HOME. Raises BuildError."""
    named = environ.get("NVCC")
    home = environ.get("CUDA_HOME")
    places = [named] if named else ["nvcc", *([f"{home}/bin/nvcc"] if home else [])]
    for place in places:
        found = shutil.which(place, path=environ.get("PATH"))
        if found:
            return found
    if named:
        raise BuildError(f"NVCC={named!r} is not there or not executable")
    raise BuildError("no nvcc (looked on PATH and under CUDA_HOME; NVCC names another)")


def compile_cuda(csrc: Path, folder: Path, environ: Mapping[str, str]) -> Path:
    """Build the CUDA library in `folder` and return its path. Does nothing when what it was built from is the same."""
    nvcc = find_nvcc(environ)
    library, key, log = folder / CUDA_LIBRARY, folder / "key", folder / "build.log"
    wanted = _cuda_key(csrc, nvcc)
    if library.is_file() and key.is_file() and key.read_text() == wanted:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{CUDA_LIBRARY}.new"
    threads = ("--threads", environ.get("MAX_JOBS") or "0")  # one per architecture; 0: as many as there are cores
    command = [nvcc, *CUDA_FLAGS, *threads, f"-I{csrc}", str(csrc / CUDA_SOURCE), "-o", str(fresh)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"nvcc did not finish within {BUILD_TIMEOUT_S:.0f} s") from None
    log.write_text(f"{shlex.join(command)}\n{done.stdout}")
    if done.returncode != 0:
        raise BuildError(first_error(done.stdout), done.stdout)
    fresh.replace(library)
    key.write_text(wanted)
    return library


def _cuda_key(csrc: Path, nvcc: str) -> str:
    digest = hashlib.sha256()
    for text in (_all_lines([nvcc, "--version"]), *CUDA_FLAGS, CUDA_SOURCE):
        digest.update(text.encode() + b"\0")
    for path in sorted(p for area in CUDA_AREAS for p in (csrc / area).rglob("*") if p.suffix in (".cu", ".cuh", ".h")):
        digest.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def built_for(core: Path) -> str | None:
    """The torch version a core was compiled for, read from its bytes: loading a misfit just to ask it can crash."""
    _, found, rest = core.read_bytes().partition(MARK.encode())
    return rest.partition(b"\0")[0].decode() if found else None


def first_error(output: str) -> str:
    """The line of a compiler's output that a person would look for."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror *: |\bld: (?!warning)|\bfatal *: ", line)]
    return (telling or lines[-1:] or ["the compiler failed without a word"])[0]


def ninja_file(recipe: Recipe) -> str:
    """The text of build.ninja; header dependencies come from the compiler itself (deps = gcc)."""
    names = {src: src.relative_to(recipe.csrc).as_posix().replace("/", ".") + ".o" for src in sources(recipe.csrc)}
    names[Path("mark.cpp")] = "mark.o"
    lines = [
        f"cxx = {_words(recipe.compiler)}",
        f"cflags = {_words((*recipe.flags, *recipe.includes))}",
        f"ldflags = {_words((*SHARED, f'-L{recipe.library_dir}', *LIBRARIES))}",
        "rule cc",
        "  command = $cxx $cflags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $out",  # the whole command is shown when it fails
        "rule link",
        "  command = $cxx $in $ldflags -o $out",
        "  description = link $out",
        *(f"build {obj}: cc {_path(src)}" for src, obj in names.items()),
        f"build {CORE}: link {' '.join(names.values())}",
    ]
    return "\n".join(lines) + "\n"


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word).replace("$", "$$") for word in words)


def _path(path: Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _compiler(environ: Mapping[str, str]) -> tuple[str, ...]:
    named = environ.get("CXX")
    if named:
        words = tuple(shlex.split(named))
        if shutil.which(words[0]) is None:
            raise BuildError(f"CXX={named!r} is not there or not executable")
        return words
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return (found,)
    raise BuildError("no C++ compiler (looked for c++, g++, clang++; CXX names another)")


def _ninja() -> str:
    beside = Path(sys.executable).with_name("ninja")  # in an environment that is not activated
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("ninja")
    if found is None:
        raise BuildError("no ninja (pip install ninja)")
    return found


def _first_line(argv: Sequence[str]) -> str:
    return _all_lines(argv).partition("\n")[0]


def _all_lines(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise BuildError(f"{shlex.join(argv)} does not run: {err}") from err
    return done.stdout


def _write_if_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:  # ninja goes by time stamps
        path.write_text(text)
