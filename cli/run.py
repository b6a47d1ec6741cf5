"""`gaoler run FILE [ARGS...]`: a program through a running service, like `python FILE`.

The file's suffix says how it is built and run (`gaoler.config.runtimes`).  Its standard
input, output and exit code are ours; everything else is said on stderr.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from gaoler.cli import exit_codes, run_outcome
from gaoler.cli.run_order import TIMES, Order, Upload, request
from gaoler.cli.run_outcome import Asked, Reply
from gaoler.config.kinds import DAY_MS, MOST_BYTES
from gaoler.config.runtimes import UnknownLanguageError, program
from gaoler.http.client_address import AddressError, service_at
from gaoler.http.client_answers import Answer
from gaoler.http.client_errors import RunnerError

DEFAULT_URL = "http://127.0.0.1:8300"

# Far more than a service takes; it keeps `yes | gaoler run FILE` from filling our memory.
MOST_STDIN_BYTES = 256 << 20

ABOUT = """\
FILE's suffix says what it is: .py, .c, .cpp, .js, .java, .sh and more.  A language that is
compiled is built first.  What follows FILE goes to the program as it is, also --options.

Standard input is read to its end and then sent, where it is no terminal: use </dev/null
where it would never end.  A terminal is read, until Ctrl-D, only with --stdin.
"""


class UsageError(Exception):
    """What was asked for cannot be done; the text is for whoever asked."""


class InputTooLarge(Exception):
    """Standard input is larger than any service would take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTIONS] FILE [ARGS...]"
    parser.description = f"{parser.description}\n\n{ABOUT}"
    parser.epilog = run_outcome.EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    _add_connection(parser)
    _add_program(parser)
    # One argument for both: with two of them argparse would swallow a `--` after FILE.
    parser.add_argument(
        "words",
        nargs=argparse.PARSER,
        metavar="FILE",
        help="the source file, and the program's own arguments",
    )


def _add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help=f"the service; else $GAOLER_URL, else {DEFAULT_URL}")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="PATH",
        help="a file whose first line is the API key; else $GAOLER_API_KEY",
    )
    parser.add_argument(
        "--priority",
        choices=("interactive", "grading"),
        default="interactive",
        help="the class to queue in; grading has more time and goes last",
    )


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout-ms",
        type=_up_to(DAY_MS),
        metavar="N",
        help="the time of the run, building apart",
    )
    parser.add_argument(
        "--memory-bytes", type=_up_to(MOST_BYTES), metavar="N", help="the memory of the run"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME=VALUE",
        help="a variable of the program's environment; can be repeated",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        dest="files",
        metavar="PATH[=REMOTE]",
        help="one more file to send, under its own relative path or else its name, or as "
        "REMOTE (needed where PATH has a = in it); can be repeated",
    )
    parser.add_argument(
        "--stdin", action="store_true", help="read standard input also from a terminal"
    )


def main(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Run one file; the exit codes are run_outcome.EXIT_CODES."""
    try:
        url, key = _url(args, environ), _key(args, environ)
        service_at(url, key)  # what is wrong with them is said before anything is read
        asked = Asked(with_key=key is not None, for_grading=args.priority == "grading")
        return _finish(_ask(url, key, _order(args)), asked)
    except (UsageError, AddressError, UnknownLanguageError) as problem:
        _say(str(problem))
        return exit_codes.BAD_USAGE
    except InputTooLarge:
        _say(f"refused: standard input is larger than {MOST_STDIN_BYTES} bytes")
        return run_outcome.REFUSED


# --- what is asked for --------------------------------------------------------------------


def _url(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    return args.url or environ.get("GAOLER_URL") or DEFAULT_URL


def _key(args: argparse.Namespace, environ: Mapping[str, str]) -> str | None:
    if args.key_file is None:
        return environ.get("GAOLER_API_KEY") or None
    # As the server reads its own: one a line, blank lines and comments passed over.
    try:
        lines = [line.strip() for line in _read(args.key_file).decode().splitlines()]
    except UnicodeDecodeError:
        lines = []
    key = next((line for line in lines if line and not line.startswith("#")), None)
    if key is None:
        raise UsageError(f"{args.key_file}: there is no key in it")
    return key


def _order(args: argparse.Namespace) -> Order:
    """Raises UsageError, UnknownLanguageError, InputTooLarge."""
    words = args.words[1:] if args.words[0] == "--" and len(args.words) > 1 else args.words
    file_name, *arguments = words
    for argument in arguments:
        _need_text("an argument", argument)
    source = _read(Path(file_name))
    made = program(file_name, source.decode(errors="replace"))
    uploads = (Upload(made.file_name, source), *map(_upload, args.files))
    _need_distinct(uploads)
    return Order(
        program=made,
        uploads=uploads,
        arguments=tuple(arguments),
        env=tuple(args.env),
        stdin=_stdin(args.stdin),
        timeout_ms=args.timeout_ms,
        memory_bytes=args.memory_bytes,
        priority=args.priority,
    )


def _upload(word: str) -> Upload:
    """From PATH or PATH=REMOTE."""
    local, equals, remote = word.rpartition("=")
    if not equals:
        local, remote = word, _as_at_home(word)
    if not (local and remote):
        raise UsageError(f"--file {word!a}: expected PATH or PATH=REMOTE")
    _need_text("--file", remote)
    path = Path(local)
    data = _read(path)
    executable = path.stat().st_mode & stat.S_IXUSR
    return Upload(remote, data, 0o755 if executable else 0o644)


def _as_at_home(path: str) -> str:
    """The program finds the file by the path that it has from here, or by its name alone."""
    normal = posixpath.normpath(path)
    if normal.startswith(("/", "../")):
        return posixpath.basename(normal)
    return normal


def _need_distinct(uploads: Sequence[Upload]) -> None:
    seen = set()
    for upload in uploads:
        normal = posixpath.normpath(upload.remote)
        if normal in seen:
            raise UsageError(f"two files would be sent as {normal!a}")
        seen.add(normal)


def _need_text(what: str, value: str) -> None:
    """JSON carries text; a byte that is none came to us as a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid UTF-8: {value!a}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise UsageError(f"{str(path)!a}: {why}") from None


def _stdin(from_terminal: bool) -> bytes:
    """All of standard input, or nothing where it is closed or a terminal that is not meant."""
    if sys.stdin is None or (sys.stdin.isatty() and not from_terminal):
        return b""
    try:
        data = sys.stdin.buffer.read(MOST_STDIN_BYTES + 1)
    except OSError as problem:
        raise UsageError(f"standard input: {problem.strerror}") from None
    if len(data) > MOST_STDIN_BYTES:
        raise InputTooLarge
    return data


def _up_to(most: int) -> Callable[[str], int]:
    """Whole numbers from 1 to what no service's settings can exceed."""

    def parse(word: str) -> int:
        # Its length first: Python reads no number of thousands of digits.
        number = int(word) if re.fullmatch("[0-9]{1,19}", word) else 0
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"{word!a}: expected a number from 1 to {most}")
        return number

    return parse


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{word!a}: expected NAME=VALUE")
    try:
        _need_text("--env", word)
    except UsageError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return name, value


# --- what is asked, and what is shown -----------------------------------------------------


def _ask(url: str, key: str | None, order: Order) -> Reply:
    # Only now: it takes as long to load as all of the rest.
    from gaoler.http.client import Client

    with Client(url, key, times=TIMES) as client:
        waiting = f"running {order.program.file_name} on {client.address} ..."
        if _watched():
            _tell(waiting)
        try:
            return client.execute(request(order))
        except RunnerError as error:
            return error
        finally:
            if _watched():
                _tell("\r" + " " * len(waiting) + "\r")


def _finish(reply: Reply, asked: Asked) -> int:
    """Write what came back; the exit code."""
    ending = run_outcome.conclude(reply, asked)
    if isinstance(reply, Answer):
        try:
            _show(reply)
        except OSError as problem:
            _say(f"the output could not be written: {problem.strerror}")
            return run_outcome.OUR_FAULT
    if ending.line is not None:
        _say(ending.line)
    if isinstance(reply, Answer) and _watched():
        _say(run_outcome.summary(reply))
    return ending.code


def _show(answer: Answer) -> None:
    """Both streams as they were; of a build both on stderr, as it is not the program's."""
    for build in run_outcome.builds(answer):
        _write(sys.stderr, build.stdout_bytes + build.stderr_bytes)
    ran = run_outcome.program(answer)
    _write(sys.stdout, ran.stdout_bytes)
    _write(sys.stderr, ran.stderr_bytes)


def _say(line: str | None) -> None:
    """One line on stderr, whatever a server wrote into it."""
    if line is None:
        return
    plain = "".join(each if each.isprintable() else " " for each in line)
    _tell(f"gaoler run: {plain}\n")


def _tell(text: str) -> None:
    try:
        _write(sys.stderr, text.encode(errors="replace"))
    except OSError:
        pass  # nobody can be told


def _watched() -> bool:
    """Whether a person looks at stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def _write(stream: TextIO | None, data: bytes) -> None:
    """Write all of it at once: a buffer's rest would fail once more at the interpreter's end.

    A reader that has left is not our affair: the program's exit code still counts.
    """
    if stream is None:  # closed by whoever started us; the number may be a socket's by now
        return
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(stream.fileno(), left) :]
    except BrokenPipeError:
        pass
