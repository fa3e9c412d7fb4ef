"""Run a script or module as python would, watched from its first model call on, and print the report at its end.

The models need not be named: the outermost modules that the program calls are watched. The script's exit code,
traceback and signals are its own; what it prints is left alone, and the report goes to standard error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

from nanscan.cli.script import Script, show

# An option of `run` takes one value, except these.
_FLAGS = ("-h", "--help")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare ``nanscan run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run",
        help="run a script, watched; print the report at its end",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="nanscan run [options] script.py [args ...]\n       nanscan run [options] -m module [args ...]",
    )
    parser.add_argument("--level", help='what is read; "module" (default): outputs, gradients, parameters of modules')
    parser.add_argument(
        "--on-anomaly", metavar="ACTION", help="warn (default), raise, stop (at the step's end), record (say nothing)"
    )
    parser.add_argument("--dir", help="write an event log there; `nanscan report DIR` reads it")
    parser.add_argument("--every", type=int, metavar="N", help="scan every N-th step only")
    parser.add_argument(
        "--error-exitcode",
        type=int,
        default=0,
        metavar="N",
        help="exit with N if the script ended with 0, but an error was seen (a non-finite value that escaped)",
    )
    return parser


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut ``run``'s command line into nanscan's words and the script's: from the script's name on, all is its own."""
    if list(argv[:1]) != ["run"]:
        return list(argv), []
    i = 1
    while i < len(argv) and argv[i].startswith("-") and argv[i] not in ("-m", "--"):
        i += 1 if "=" in argv[i] or argv[i] in _FLAGS else 2
    command = list(argv[i:])
    return list(argv[:i]), command[1:] if command[:1] == ["--"] else command


def run(args: argparse.Namespace) -> int:
    """Run the script and report. Returns its exit code, or raises what ends the process the way the script wanted."""
    command: list[str] = args.command
    if not command or command == ["-m"]:
        raise ValueError("nothing to run: give a script.py, or -m and a module, after the options")
    try:
        script = Script(command)
    except ModuleNotFoundError as error:  # python's own exit code for it
        print(f"nanscan run: error: {error}", file=sys.stderr)
        return 1

    import nanscan

    options = {name: getattr(args, name) for name in ("level", "on_anomaly", "dir", "every")}
    scanner = nanscan.enable(None, **{name: value for name, value in options.items() if value is not None})
    farewell = _Farewell(scanner, sys.stderr)
    farewell.on_sigterm()
    try:
        script.run()
    except SystemExit as end:
        sees_error = farewell.say()
        if end.code in (None, 0) and sees_error:
            return int(args.error_exitcode)
        raise
    except KeyboardInterrupt as interrupt:
        show(interrupt)
        farewell.say()
        # Python then ends by the signal itself, as shells expect; its traceback has been shown.
        sys.excepthook = lambda *_: None
        raise
    except BaseException as error:
        show(error)
        farewell.say()
        return 1
    return int(args.error_exitcode) if farewell.say() else 0


class _Farewell:
    """Prints the report once, in the process that was started, and closes the scanner."""

    def __init__(self, scanner: Any, stream: TextIO) -> None:
        self._scanner, self._stream = scanner, stream  # the stream of the start: the script may replace sys.stderr
        self._pid = os.getpid()
        self._said = False

    def say(self) -> bool:
        """Print the report. True if an error was seen."""
        if self._said or os.getpid() != self._pid:  # a forked child that ran to the script's end has nothing to tell
            return False
        self._said = True
        try:
            if not self._scanner.closed:  # the script may have called nanscan.disable()
                self._scanner.close()  # first: it also judges the step that was running
            first = self._scanner.first
            text = str(self._scanner.report())
        except Exception as error:  # the script's own ending matters more than ours
            print(f"nanscan run: no report: {type(error).__name__}: {error}", file=self._stream)
            return False
        sys.stdout.flush()
        print(text, file=self._stream, flush=True)
        return first is not None and first.severity == "error"

    def on_sigterm(self) -> None:
        """Report before a SIGTERM (from a batch system, or torchrun) ends the process, unless the script handles it."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            # In a thread of its own: the interrupted code may hold a lock that the report needs.
            thread = threading.Thread(target=self.say, daemon=True)
            thread.start()
            thread.join(timeout=5)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
