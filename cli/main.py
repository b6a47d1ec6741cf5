"""`gaoler COMMAND …`: finds the subcommand's module and hands over to it.

A subcommand's module has `add_arguments(parser)` and `main(args) -> int`.  It is imported
only when it is called, so that a small command does not wait for the large ones.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
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
    args = _parsed(words, called, module)
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


def _parsed(words: Sequence[str], called: str | None, module: Any) -> argparse.Namespace:
    """What a command does not know is refused by that command, with its own usage."""
    parser, command = _parsers(called, module)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        (command or parser).error(_unknown(unknown, command or parser))
    return args


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """What stands in the way, and for a slip in an option's name the one that was meant."""
    known = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", parser.format_help(), re.MULTILINE)
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    near = [each for name in names for each in difflib.get_close_matches(name, known, n=1)]
    meant = f"; did you mean {' '.join(near)}?" if near else ""
    return f"unrecognized arguments: {' '.join(words)}{meant}"


def _parsers(
    called: str | None, module: Any
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None]:
    """All commands by name, and the one that is called, with its arguments."""
    parser = argparse.ArgumentParser(
        prog="gaoler",
        description="Runs untrusted code in a Linux sandbox.",
        epilog=(
            "exit codes: 0 done, 1 the work failed, 2 bad usage, 3 busy, 4 unavailable; "
            "`gaoler run` has the program's own, and 120 to 125 where it did not run to its end"
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    found = None
    for name, (_, meaning) in COMMANDS.items():
        command = commands.add_parser(
            name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}."
        )
        if name == called:
            module.add_arguments(command)
            found = command
    return parser, found


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
