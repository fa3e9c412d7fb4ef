"""What the user may set: the run-time environment (read here and nowhere else) and the arguments of enable().

Every refusal names the argument or variable, the value found and the way out. No torch import here: `nanscan report`
reads settings without it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanscan._build import read_build_env

LEVELS = ("module", "op")
ON_ANOMALY = ("warn", "raise", "record", "stop")
BACKENDS = ("auto", "native", "triton", "eager")
CLOCKS = ("auto", "manual")

# A module filter: globs on names in named_modules(), or Module subclasses.
Filter = tuple["str | type", ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment as nanscan reads it. None: the variable is not set."""

    off: bool  # NANSCAN=0 switches everything off, whatever the program says
    level: str | None  # NANSCAN=module
    on_anomaly: str | None
    dir: Path | None
    every: int | None
    backend: str
    build: str
    require_native: bool
    cache_dir: Path
    rank: int
    local_rank: int
    world_size: int
    restart: int  # how often torchrun has restarted this worker


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of enable(), checked, with the environment's values where an argument was not given."""

    level: str
    on_anomaly: str | Callable[..., Any]
    every: int
    schedule: Callable[[int], Any] | None
    clock: str
    max_events: int
    escalate: bool
    dir: Path | None
    skip: Filter
    include: Filter | None


def read_env(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and validate the environment, afresh at each call."""
    env = os.environ if environ is None else environ
    build, require_native = read_build_env(env)
    mode = env.get("NANSCAN") or None
    if mode is not None:
        _choice("NANSCAN", mode, ("0", *LEVELS))
    on_anomaly = env.get("NANSCAN_ON_ANOMALY") or None
    if on_anomaly is not None:
        _choice("NANSCAN_ON_ANOMALY", on_anomaly, ON_ANOMALY)
    directory = env.get("NANSCAN_DIR") or None
    return Settings(
        off=mode == "0",
        level=None if mode == "0" else mode,
        on_anomaly=on_anomaly,
        dir=None if directory is None else Path(directory).expanduser(),
        every=_count(env, "NANSCAN_EVERY", None, least=1),
        backend=_choice("NANSCAN_BACKEND", env.get("NANSCAN_BACKEND") or "auto", BACKENDS),
        build=build,
        require_native=require_native,
        cache_dir=_cache_dir(env),
        rank=_count(env, "RANK", 0) or 0,
        local_rank=_count(env, "LOCAL_RANK", 0) or 0,
        world_size=_count(env, "WORLD_SIZE", 1, least=1) or 1,
        restart=_count(env, "TORCHELASTIC_RESTART_COUNT", 0) or 0,
    )


def check_options(
    *,
    level: str | None = None,
    on_anomaly: str | Callable[..., Any] | None = None,
    every: int | None = None,
    schedule: Callable[[int], Any] | None = None,
    clock: str = "auto",
    max_events: int = 1000,
    escalate: object = True,
    dir: str | os.PathLike[str] | None = None,
    skip: object = (),
    include: object = None,
    settings: Settings | None = None,
) -> Options:
    """Check the arguments of enable(). None means "not given": the environment decides, then the default.

    Raises ValueError or TypeError. `dir` is created, and probed by writing to it.
    """
    env = read_env() if settings is None else settings
    return Options(
        level=_choice("level", _first(level, env.level, "module"), LEVELS),
        on_anomaly=check_on_anomaly(_first(on_anomaly, env.on_anomaly, "warn")),
        every=check_positive("every", _first(every, env.every, 1)),
        schedule=_check_schedule(schedule),
        clock=_choice("clock", clock, CLOCKS),
        max_events=check_positive("max_events", max_events),
        escalate=_check_bool("escalate", escalate),
        dir=_check_dir(dir) if dir is not None else _check_dir(env.dir, "NANSCAN_DIR"),
        skip=check_filter("skip", skip) or (),
        include=check_filter("include", include),
    )


def check_on_anomaly(value: Any) -> str | Callable[..., Any]:
    """One of ON_ANOMALY, or anything callable."""
    if callable(value):
        return value
    try:
        return _choice("on_anomaly", value, ON_ANOMALY)
    except ValueError as err:
        raise ValueError(f"{err}, or a callable that takes the event") from None


def check_positive(name: str, value: Any) -> int:
    """An int of at least 1 (True is not one)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; give an int of at least 1")
    if value < 1:
        raise ValueError(f"{name}={value} is below 1; give an int of at least 1")
    return value


def check_filter(name: str, value: object) -> Filter | None:
    """A glob, a Module subclass, or an iterable of those, as a tuple; None stays None."""
    if value is None:
        return None
    if isinstance(value, (str, type)):
        value = (value,)
    if not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; give name globs or Module subclasses")
    entries = tuple(value)
    for entry in entries:
        if isinstance(entry, str):
            continue
        from torch import nn  # not at the top, and not for the empty default: see the module's docstring

        if isinstance(entry, nn.Module):
            kind = type(entry).__name__
            raise TypeError(f"{name} holds a {kind} instance; give its class, or a glob of its name in named_modules()")
        if not (isinstance(entry, type) and issubclass(entry, nn.Module)):
            raise TypeError(
                f"{name} holds {entry!r}; give name globs ('blocks.*.drop') or Module subclasses (nn.Dropout)"
            )
    return entries


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; give True or False")
    return value


def _check_schedule(value: Any) -> Callable[[int], Any] | None:
    if value is not None and not callable(value):
        raise TypeError(
            f"schedule={value!r} is of type {type(value).__name__}; "
            "give a callable from step to bool (torch.profiler.schedule(...) is one)"
        )
    return value


def _check_dir(value: str | os.PathLike[str] | None, name: str = "dir") -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"dir={value!r} is of type {type(value).__name__}; give a path, or None for no log")
    path = Path(value).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # permission bits lie to root and on network file systems
            pass
    except OSError as err:
        way_out = "dir=None for no log" if name == "dir" else f"unset {name} for no log"
        raise ValueError(
            f"{name}={str(value)!r} cannot be written ({err}); give a folder that can be created and written to, "
            f"or {way_out}"
        ) from err
    return path


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    choices = ", ".join(a if name.isupper() else repr(a) for a in allowed)
    raise ValueError(f"{name}={value!r} is unknown; use one of {choices}")


def _count(env: Mapping[str, str], name: str, default: int | None, least: int = 0) -> int | None:
    text = env.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name}={text!r} is not a whole number of at least {least}; set one, or unset {name}")
    return value


def _cache_dir(env: Mapping[str, str]) -> Path:
    own = env.get("NANSCAN_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nanscan"


def _first(*values: Any) -> Any:
    return next(v for v in values if v is not None)
