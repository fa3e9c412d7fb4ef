"""Refusals name the variable or argument, the value found and the way out."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from nanscan import config
from nanscan.errors import NonFiniteError


def test_an_empty_environment_gives_the_defaults() -> None:
    found = config.read_env({"HOME": "/home/x"})
    assert (found.off, found.level, found.on_anomaly, found.dir, found.every) == (False, None, None, None, None)
    assert (found.backend, found.build, found.require_native) == ("auto", "auto", False)
    assert (found.rank, found.local_rank, found.world_size, found.restart) == (0, 0, 1, 0)


def test_every_variable_is_read() -> None:
    found = config.read_env(
        {
            "NANSCAN": "module",
            "NANSCAN_ON_ANOMALY": "record",
            "NANSCAN_DIR": "logs",
            "NANSCAN_EVERY": "5",
            "NANSCAN_BACKEND": "eager",
            "NANSCAN_BUILD": "none",
            "NANSCAN_REQUIRE_NATIVE": "1",
            "NANSCAN_CACHE_DIR": "/c",
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "TORCHELASTIC_RESTART_COUNT": "2",
        }
    )
    assert found == config.Settings(
        off=False,
        level="module",
        on_anomaly="record",
        dir=Path("logs"),
        every=5,
        backend="eager",
        build="none",
        require_native=True,
        cache_dir=Path("/c"),
        rank=3,
        local_rank=1,
        world_size=4,
        restart=2,
    )


def test_zero_is_the_kill_switch() -> None:
    found = config.read_env({"NANSCAN": "0"})
    assert found.off
    assert found.level is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("NANSCAN", "yes", "NANSCAN='yes' is unknown; use one of 0, module, op"),
        ("NANSCAN_ON_ANOMALY", "die", "NANSCAN_ON_ANOMALY='die' is unknown; use one of warn, raise, record, stop"),
        (
            "NANSCAN_EVERY",
            "-2",
            "NANSCAN_EVERY='-2' is not a whole number of at least 1; set one, or unset NANSCAN_EVERY",
        ),
        ("NANSCAN_EVERY", "often", "NANSCAN_EVERY='often' is not a whole number"),
        ("NANSCAN_BACKEND", "cuda", "NANSCAN_BACKEND='cuda' is unknown; use one of auto, native, triton, eager"),
        ("NANSCAN_BUILD", "gpu", "NANSCAN_BUILD='gpu' is unknown; use one of auto, cpu, cuda, none"),
        ("NANSCAN_REQUIRE_NATIVE", "yes", "NANSCAN_REQUIRE_NATIVE='yes' is unknown; use 0 or 1"),
        ("RANK", "first", "RANK='first' is not a whole number of at least 0"),
    ],
)
def test_a_bad_variable_is_refused(variable: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        config.read_env({variable: value})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"level": "line"}, ValueError, "level='line' is unknown; use one of 'module', 'op'"),
        ({"level": "layer"}, ValueError, "level='layer' is unknown; use one of 'module'"),
        ({"level": 3}, ValueError, "level=3 is unknown; use one of 'module'"),
        (
            {"on_anomaly": "die"},
            ValueError,
            "on_anomaly='die' is unknown; use one of 'warn', 'raise', 'record', 'stop', or",
        ),
        ({"every": 0}, ValueError, "every=0 is below 1; give an int of at least 1"),
        ({"every": -3}, ValueError, "every=-3 is below 1"),
        ({"every": 1.5}, TypeError, "every=1.5 is of type float; give an int of at least 1"),
        ({"every": True}, TypeError, "every=True is of type bool"),
        ({"max_events": 0}, ValueError, "max_events=0 is below 1"),
        ({"clock": "wall"}, ValueError, "clock='wall' is unknown; use one of 'auto', 'manual'"),
        ({"schedule": 4}, TypeError, "schedule=4 is of type int; give a callable from step to bool"),
        ({"dir": 4}, TypeError, "dir=4 is of type int; give a path, or None for no log"),
        ({"skip": 4}, TypeError, "skip=4 is of type int; give name globs or Module subclasses"),
        ({"skip": [int]}, TypeError, "skip holds <class 'int'>; give name globs"),
        ({"include": ["a", None]}, TypeError, "include holds None; give name globs"),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        config.check_options(**arguments, settings=config.read_env({}))


def test_an_argument_beats_the_environment_and_that_beats_the_default() -> None:
    env = config.read_env({"NANSCAN_EVERY": "7", "NANSCAN_ON_ANOMALY": "stop"})
    found = config.check_options(every=2, settings=env)
    assert (found.every, found.on_anomaly, found.level, found.max_events) == (2, "stop", "module", 1000)


def test_any_callable_is_an_on_anomaly() -> None:
    assert config.check_options(on_anomaly=print, settings=config.read_env({})).on_anomaly is print


def test_filters_become_tuples() -> None:
    from torch import nn

    assert config.check_filter("skip", "blocks.*") == ("blocks.*",)
    assert config.check_filter("skip", nn.Dropout) == (nn.Dropout,)
    assert config.check_filter("skip", ["a", nn.ReLU]) == ("a", nn.ReLU)
    assert config.check_filter("include", None) is None


def test_a_module_instance_is_no_filter() -> None:
    from torch import nn

    with pytest.raises(TypeError, match="skip holds a ReLU instance; give its class, or a glob"):
        config.check_filter("skip", [nn.ReLU()])


def test_dir_is_created_and_left_empty(tmp_path: Path) -> None:
    found = config.check_options(dir=tmp_path / "a" / "b", settings=config.read_env({}))
    assert found.dir == tmp_path / "a" / "b"
    assert list(found.dir.iterdir()) == []


def test_a_dir_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^dir='.*file/logs' cannot be written \(.*\); give a folder that can be"):
        config.check_options(dir=tmp_path / "file" / "logs", settings=config.read_env({}))


def test_nonfinite_error_survives_pickling() -> None:
    back = pickle.loads(pickle.dumps(NonFiniteError("here", event={"step": 3})))
    assert str(back) == "here"
    assert back.event == {"step": 3}
