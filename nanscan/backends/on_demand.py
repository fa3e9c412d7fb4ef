"""The second way to the core: compile it at first use into a per-user cache.

One process compiles while the others wait on a kernel lock (flock), which is gone the moment its holder is, however
it dies: a lock file that has to be deleted would hang every later start after one kill. The finished folder is renamed
into place, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nanscan._build import BUILD_TIMEOUT_S, CORE, BuildError, Recipe, compile_core, first_error

# Ranks that start together need not fail one after the other; later than this the cause may have been mended.
FAILURE_REMEMBERED_S = 60.0


def core_from_cache(recipe: Recipe, cache: Path, environ: Mapping[str, str]) -> Path:
    """Path of the core for `recipe`, compiled into `cache` first if it is not there yet. Raises BuildError."""
    ready = cache / recipe.key
    if (ready / CORE).is_file():
        return ready / CORE
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (cache / f"{recipe.key}.lock").open("w")
    except OSError as err:
        raise BuildError(f"cannot write to the cache: {err}; NANSCAN_CACHE_DIR names another folder") from err
    with lock, _held(lock.fileno()):
        if not (ready / CORE).is_file():
            _compile(recipe, cache, ready, environ)
    return ready / CORE


def _compile(recipe: Recipe, cache: Path, ready: Path, environ: Mapping[str, str]) -> None:
    failed = cache / f"{recipe.key}.failed.log"
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - failed.stat().st_mtime
        if age < FAILURE_REMEMBERED_S:
            raise BuildError(f"{first_error(failed.read_text())} (tried {age:.0f} s ago; whole output: {failed})")
    for left in cache.glob(f"{recipe.key}.tmp*"):  # their makers are dead: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    work = cache / f"{recipe.key}.tmp{os.getpid()}"
    began = time.monotonic()
    _say(f"nanscan: compiling its core for torch {recipe.torch_version} into {cache} (once) ... ")
    try:
        compile_core(recipe, work, environ)
        for rest in work.iterdir():
            if rest.name != CORE:
                rest.unlink()
        shutil.rmtree(ready, ignore_errors=True)  # there, but without a core: left by hand
        work.rename(ready)
    except BuildError as err:
        _say("failed\n")
        with contextlib.suppress(OSError):
            (work / "build.log").replace(failed)
        raise BuildError(f"{err} (whole output: {failed})") from None
    except OSError as err:
        _say("failed\n")
        raise BuildError(f"cannot write to the cache: {err}; NANSCAN_CACHE_DIR names another folder") from err
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"done in {time.monotonic() - began:.0f} s\n")


@contextlib.contextmanager
def _held(fd: int) -> Iterator[None]:
    """Wait for the exclusive lock on `fd`. Files are close-on-exec: a compiler that outlives us does not keep it."""
    import fcntl  # not on Windows, where recipe() has said no before

    deadline = time.monotonic() + BUILD_TIMEOUT_S + 60
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BuildError("another process has been compiling the core for too long") from None
            if not told:
                _say("nanscan: waiting for another process that compiles the core ...\n")
                told = True
            time.sleep(0.2)
        except OSError:  # a file system without locks: two may compile, the rename still keeps readers safe
            break
    yield


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
