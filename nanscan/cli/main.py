"""nanscan: find where a PyTorch program first goes numerically wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nanscan._version import __version__
from nanscan.cli import demo, doctor, explain, report, run
from nanscan.errors import NanscanError

USAGE_ERROR = 2  # as argparse has it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. What a watched script raises to end itself passes through."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    arguments, command = run.split(arguments)
    args = _parser().parse_args(arguments)
    args.command = command
    try:
        code: int = args.run(args)
        return code
    except NanscanError as error:
        return _complain(args.name, error, 1)
    except (ValueError, OSError) as error:  # a wrong argument or variable, a folder that is not there
        if isinstance(error, BrokenPipeError):  # nanscan report DIR | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _complain(args.name, error, USAGE_ERROR)


def _complain(name: str, error: Exception, code: int) -> int:
    print(f"nanscan {name}: error: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanscan", description=__doc__, epilog="nanscan COMMAND --help tells more about a command."
    )
    parser.add_argument("--version", action="version", version=f"nanscan {__version__}")
    subparsers = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for command in (run, report, explain, doctor, demo):
        subparser = command.add_parser(subparsers)
        subparser.set_defaults(run=command.run)
    return parser
