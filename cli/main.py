"""`gaoler COMMAND …`: finds the subcommand's module and hands over to it.

A subcommand's module has `add_arguments(parser)` and `main(args) -> int`.  It is imported
only when it is called, so that a small command does not wait for the large ones.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from gaoler.cli import exit_codes

# Name: its module, and what it does.
COMMANDS = {
    "serve": ("gaoler.cli.serve", "start the service"),
    "run": ("gaoler.cli.run", "run a program in a running service, like `python FILE`"),
    "drain": (
        "gaoler.cli.drain",
        "let the service end once what it has taken is done; it takes nothing new",
    ),
    "doctor": (
        "gaoler.cli.doctor",
        "say what this host can isolate, and what to do about the rest",
    ),
    "config": ("gaoler.cli.config_command", "print every setting with its value and its source"),
    "plan": ("gaoler.cli.plan", "say by simulation what a class will see, and what it needs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code, see `exit_codes`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:  # it is None where whoever started us closed it
                sys.stdout.flush()  # here, where what is wrong with it can still be met
    except BrokenPipeError:  # whoever read our output has seen enough
        _drop_output()
        return exit_codes.FAILED
    except OSError as problem:
        _drop_output()
        print(f"gaoler: {problem}", file=sys.stderr)
        return exit_codes.FAILED


def _run(words: Sequence[str]) -> int:
    from gaoler.config.kinds import SettingsError

    called = words[0] if words and words[0] in COMMANDS else None
    module = importlib.import_module(COMMANDS[called][0]) if called is not None else None
    args = _parser(called, module).parse_args(words)
    if module is None:  # argparse let nothing but a command through
        raise AssertionError(words)
    try:
        return int(module.main(args))
    except SettingsError as problem:
        print(f"gaoler: {problem}", file=sys.stderr)
        return exit_codes.BAD_USAGE
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _drop_output() -> None:
    """What is still buffered and cannot be written must not fail at the interpreter's end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(called: str | None, module: Any) -> argparse.ArgumentParser:
    """All commands by name, and the arguments of the one that is called."""
    parser = argparse.ArgumentParser(
        prog="gaoler",
        description="Runs untrusted code in a Linux sandbox.",
        epilog="exit codes: 0 done, 1 the work failed, 2 bad usage, 3 busy, 4 unavailable",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, meaning) in COMMANDS.items():
        command = commands.add_parser(
            name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}."
        )
        if name == called:
            module.add_arguments(command)
    return parser


class _Version(argparse.Action):
    """Looks the version up only where it is asked for: that reads the package's metadata."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and leave")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"gaoler {version('gaoler')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
