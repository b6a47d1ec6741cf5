"""`gaoler run FILE`: the command line, and whole programs through a live service."""

from __future__ import annotations

import argparse
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gaoler.cli import run
from gaoler.cli.run_order import Upload
from tests.conftest import _need_sandbox
from tests.hosting import LIMIT_S, LiveService, eventually, free_port, jails_on_host

KEY = "s3cret-s3cret-s3cret"
MIB = 1 << 20

# Each copies its input, then its arguments, writes one line to stderr and exits with 7.
ECHO = {
    "echo.py": """
import sys
print(sys.stdin.read(), sys.argv[1:], flush=True)
print("err", file=sys.stderr)
sys.exit(7)
""",
    "echo.c": r"""
#include <stdio.h>
int main(int n, char **argv) {
    for (int c; (c = getchar()) != EOF;) putchar(c);
    for (int i = 1; i < n; i++) printf(" %s", argv[i]);
    fputs("err\n", stderr);
    return 7;
}
""",
    "echo.cpp": r"""
#include <iostream>
int main(int n, char **argv) {
    std::cout << std::cin.rdbuf();
    for (int i = 1; i < n; i++) std::cout << " " << argv[i];
    std::cerr << "err\n";
    return 7;
}
""",
    "echo.js": """
process.stdout.write(require("fs").readFileSync(0) + " " + process.argv.slice(2).join(" "));
console.error("err");
process.exitCode = 7;
""",
    "echo.java": """
public class Echo {
    public static void main(String[] arguments) throws Exception {
        System.in.transferTo(System.out);
        System.out.print(" " + String.join(" ", arguments));
        System.out.flush();
        System.err.println("err");
        System.exit(7);
    }
}
""",
    "echo.sh": 'cat; echo " $*"; echo err >&2; exit 7',
}


# --- the command line ---------------------------------------------------------------------


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    "words",
    [
        ["a.py"],
        ["a.py", "--", "x"],
        ["a.py", "--url", "x", "-h", "--timeout-ms", "0"],
        ["a.py", "", "--file", "--", "--"],
    ],
)
def test_what_follows_the_file_is_left_alone(words: list[str]) -> None:
    args = parse("--url", "http://host", *words)
    assert args.words == words
    assert args.url == "http://host"


def test_a_file_that_begins_with_a_dash_comes_after_two(tmp_path: Path) -> None:
    (tmp_path / "-a.py").write_text("")
    done = gaoler_run(f"http://127.0.0.1:{free_port()}", "--", "-a.py", cwd=tmp_path)
    assert done.returncode == 121


def test_an_option_cannot_be_shortened() -> None:
    """Else a new option could change what an old script means."""
    with pytest.raises(SystemExit):
        parse("--time", "5", "a.py")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--"],
        ["--timeout-ms", "0", "a.py"],
        ["--timeout-ms", "1.5", "a.py"],
        ["--timeout-ms", "86400001", "a.py"],
        ["--timeout-ms", "99999999999999999999", "a.py"],
        ["--timeout-ms", "9" * 5_000, "a.py"],
        ["--timeout-ms", "٣", "a.py"],
        ["--memory-bytes", str(2**50 + 1), "a.py"],
        ["--memory-bytes", "-1", "a.py"],
        ["--env", "A", "a.py"],
        ["--env", "=A", "a.py"],
        ["--priority", "high", "a.py"],
        ["--key", KEY, "a.py"],
    ],
)
def test_a_bad_option_is_bad_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["none.py"], "gaoler run: 'none.py': No such file or directory"),
        (["."], "gaoler run: '.': Is a directory"),
        ([""], "gaoler run: '.': Is a directory"),
        (["a.xyz"], "gaoler run: 'a.xyz': its name should end in one of .py"),
        (["a.py", b"\xff"], "gaoler run: an argument is not valid UTF-8: '\\udcff'"),
        (["--file", "none", "a.py"], "gaoler run: 'none': No such file or directory"),
        (["--file", "=b", "a.py"], "gaoler run: --file '=b': expected PATH or PATH=REMOTE"),
        (["--file", "a.xyz=./a.py", "a.py"], "gaoler run: two files would be sent as 'a.py'"),
        (["--key-file", "a.py", "a.py"], "gaoler run: a.py: there is no key in it"),
        (["--url", "host", "a.py"], "gaoler run: the URL 'host': expected http://HOST"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str | bytes], line: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "a.xyz").write_text("")
    done = gaoler_run("http://127.0.0.1:1", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().startswith(line)
    assert done.stderr.count(b"\n") == 1


def test_the_help_tells_the_exit_codes_and_how_stdin_is_read() -> None:
    done = gaoler_run("", "--help")
    assert done.returncode == 0
    for part in (b"that of the compiler", b"120", b"125", b"only with --stdin", b"GAOLER_API_KEY"):
        assert part in done.stdout


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "remote"),
    [
        ("in.txt", "in.txt"),
        ("./data//in.txt", "data/in.txt"),
        ("../in.txt", "in.txt"),
        ("in.txt=data/other", "data/other"),
        ("a=b.txt=c", "c"),
    ],
)
def test_a_file_goes_where_the_program_would_find_it_at_home(
    word: str, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    for path in ("in.txt", "data/in.txt", "../in.txt", "a=b.txt"):
        (here / path).write_text("x")
    monkeypatch.chdir(here)
    assert run._upload(word) == Upload(remote, b"x")
    assert run._upload(str(here / "in.txt")).remote == "in.txt"


# --- without a service --------------------------------------------------------------------


def gaoler_run(
    url: str,
    *words: str | bytes,
    stdin: bytes = b"",
    cwd: Path | None = None,
    before: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*before, *COMMAND, *words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "GAOLER_URL": url, **environment},
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


# Python warns of what is left open; a warning would show on stderr.
COMMAND = [sys.executable, "-W", "error", "-m", "gaoler.cli.main", "run"]


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_no_service_is_unavailable(source: Callable[..., str]) -> None:
    port = free_port()
    done = gaoler_run(f"http://127.0.0.1:{port}", source("a.py", ""))
    assert done.returncode == 121
    assert done.stdout == b""
    expected = (
        f"gaoler run: unavailable: 127.0.0.1:{port}: Connection refused; "
        "does it run there? see --url and GAOLER_URL\n"
    )
    assert done.stderr.decode() == expected


def test_more_input_than_any_service_takes_is_refused_here(
    source: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "MOST_STDIN_BYTES", 3)
    (tmp_path / "in").write_bytes(b"four")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run.main(parse(source("a.py", "")), {}) == 122


# --- through a live service ---------------------------------------------------------------


@pytest.fixture(scope="module")
def _service_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    _need_sandbox()
    folder = tmp_path_factory.mktemp("service")
    for each in (folder, *folder.parents[:2]):  # pytest's folders are root's alone
        each.chmod(0o755)
    live = LiveService(folder, API_KEYS=KEY).start()
    yield live
    assert live.stop() == 0


@pytest.fixture
def service(_service_of_the_module: LiveService) -> Iterator[LiveService]:
    """A service that all tests of this module share; after each nothing of it may be left."""
    live = _service_of_the_module
    yield live
    eventually(
        lambda: jails_on_host(live.instance) == [],
        lambda: f"jails are left: {jails_on_host(live.instance)}",
    )


Through = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def through(service: LiveService) -> Through:
    """`gaoler run` through the service; `options` are what stands before FILE."""

    def run_file(
        file: str, *arguments: str, options: Sequence[str] = (), **rest: object
    ) -> subprocess.CompletedProcess[bytes]:
        url = f"http://127.0.0.1:{service.port}"
        words = (*options, file, *arguments)
        return gaoler_run(url, *words, **{"GAOLER_API_KEY": KEY, **rest})  # type: ignore[arg-type]

    return run_file


@pytest.mark.parametrize("name", ECHO)
def test_a_program_of_each_language_has_our_input_arguments_and_exit_code(
    name: str, source: Callable[..., str], through: Through
) -> None:
    done = through(source(name, ECHO[name]), "-v", "two words", "é", stdin="ä 1\n".encode())
    assert done.returncode == 7, done.stderr
    assert done.stderr == b"err\n"
    out = done.stdout.decode()
    assert out.startswith("ä 1\n")
    assert "-v" in out
    assert "two words" in out
    assert "é" in out


def test_bytes_that_are_no_text_pass_both_ways(
    source: Callable[..., str], through: Through
) -> None:
    data = bytes(range(256)) * 5
    copying = source("cat.sh", "tee /dev/stderr")
    done = through(copying, stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, data)


def test_a_source_that_is_no_text_arrives_as_it_is(tmp_path: Path, through: Through) -> None:
    (tmp_path / "a.sh").write_bytes(b"printf '\xff\xfe'")
    assert through(str(tmp_path / "a.sh")).stdout == b"\xff\xfe"


def test_a_signal_is_128_and_its_number(source: Callable[..., str], through: Through) -> None:
    done = through(source("a.c", "int main(void) { *(volatile int *)0 = 1; }"))
    assert done.returncode == 128 + signal.SIGSEGV
    assert done.stderr == b"gaoler run: the program was ended by SIGSEGV\n"


def test_a_failed_build_is_told_as_by_the_compiler(
    source: Callable[..., str], through: Through
) -> None:
    done = through(source("a.c", "int main(void) { return nothing; }"))
    assert done.returncode == 1
    assert done.stdout == b""
    message = done.stderr.decode()
    assert message.startswith("a.c: In function")
    assert message.endswith("\ngaoler run: the build failed, the program was not run\n")


def test_warnings_of_a_build_are_shown_and_the_program_runs(
    source: Callable[..., str], through: Through
) -> None:
    done = through(source("a.c", '#warning "careful"\nint main(void) { return 5; }'))
    assert done.returncode == 5
    assert b"careful" in done.stderr


def test_a_program_that_takes_too_long_is_out_of_time(
    source: Callable[..., str], through: Through
) -> None:
    endless = source("a.py", "print('begun', flush=True)\nwhile True: pass")
    done = through(endless, options=["--timeout-ms", "400"])
    assert done.returncode == 124
    assert done.stdout == b"begun\n"
    assert done.stderr.startswith(b"gaoler run: out of time: the program was killed at its wall")


def test_a_program_that_takes_too_much_memory_meets_its_limit(
    source: Callable[..., str], through: Through
) -> None:
    greedy = source("a.py", f"b'x' * {256 * MIB}")
    done = through(greedy, options=["--memory-bytes", str(48 * MIB)])
    assert done.returncode == 123
    assert done.stderr == b"gaoler run: limit: the program used more memory than it may\n"


def test_a_program_that_writes_too_much_meets_its_limit_and_what_was_kept_is_shown(
    source: Callable[..., str], through: Through
) -> None:
    done = through(source("a.sh", "yes"))
    assert done.returncode == 123
    assert done.stdout[:MIB] == b"y\n" * (MIB // 2)
    assert b"wrote more than it may" in done.stderr


def test_a_language_that_the_service_has_not_is_said_so(
    source: Callable[..., str], through: Through
) -> None:
    done = through(source("a.sh", "exec /nowhere/at-all"))
    assert done.returncode == 127  # bash's own, with bash's message
    assert b"gaoler run" not in done.stderr
    done = through(source("b.py", ""), options=["--env", "PATH=/nowhere"])
    assert done.returncode == 127
    assert done.stderr.endswith(b"the service's sandbox has no such command\n")


def test_variables_and_further_files_are_there(
    source: Callable[..., str], through: Through, tmp_path: Path
) -> None:
    source("tool", "#!/bin/sh\necho tool")
    (tmp_path / "tool").chmod(0o755)
    source("a.h", "#define CODE 9")
    asked = ["--file", "tool", "--file", "a.h=lib/a.h", "--env", "A=b=c"]
    text = '#include "lib/a.h"\n#include <stdlib.h>\nint main(void) { system("./tool; echo $A"); '
    done = through(source("a.c", f"{text} return CODE; }}"), options=asked, cwd=tmp_path)
    assert done.returncode == 9, done.stderr
    assert done.stdout == b"tool\nb=c\n"


def test_the_grading_class_takes_a_run_too(source: Callable[..., str], through: Through) -> None:
    done = through(source("a.sh", "echo hi"), options=["--priority", "grading"])
    assert done.stdout == b"hi\n"


def test_a_limit_that_the_service_does_not_give_is_refused(
    source: Callable[..., str], through: Through
) -> None:
    done = through(source("a.py", ""), options=["--timeout-ms", "9999999"])
    assert done.returncode == 122
    assert b"gaoler run: refused: steps[0].limits.wall_ms" in done.stderr
    assert b"see --timeout-ms" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_the_key_of_a_file_goes_before_that_of_the_environment(
    source: Callable[..., str], through: Through
) -> None:
    file = source("a.sh", "echo in")
    key_file = source("key", f" {KEY} \nand more\n")
    assert through(file, options=["--key-file", key_file], GAOLER_API_KEY="wrong").returncode == 0
    for key, told in (("", b"the service wants a key"), ("wrong", b"takes no key like this one")):
        done = through(file, GAOLER_API_KEY=key)
        assert done.returncode == 122
        assert told in done.stderr
        assert done.stderr.count(b"\n") == 1


def test_ctrl_c_ends_the_program_in_the_service(
    source: Callable[..., str], service: LiveService
) -> None:
    endless = source("a.py", "while True: pass")
    running = subprocess.Popen(
        # Whoever started the tests in the background may have had SIGINT ignored.
        ["env", "--default-signal=INT", *COMMAND, "--timeout-ms", "25000", endless],
        env={
            "PATH": os.environ["PATH"],
            "GAOLER_URL": f"http://127.0.0.1:{service.port}",
            "GAOLER_API_KEY": KEY,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: service.queue()["running"], "the program runs")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, out, err) == (130, b"", b"")
    # Long before its 25 s are over.
    eventually(service.is_idle, "the program is ended", limit_s=10)


def test_a_reader_that_leaves_changes_no_exit_code(
    source: Callable[..., str], through: Through
) -> None:
    file = source("a.sh", "head -c 900000 /dev/zero; exit 6")
    script = '"$@" | head -c 1 >&2; exit "${PIPESTATUS[0]}"'
    done = by_bash(script, file, through)
    assert (done.returncode, done.stderr) == (6, b"\0")


def test_output_that_cannot_be_written_is_told_and_a_closed_one_is_left_alone(
    source: Callable[..., str], through: Through
) -> None:
    file = source("a.sh", "echo out; echo err >&2; exit 6")
    done = by_bash('"$@" >/dev/full', file, through)
    assert done.returncode == 125
    assert b"gaoler run: the output could not be written: No space left" in done.stderr
    done = by_bash('"$@" >&- <&-', file, through)
    assert (done.returncode, done.stderr) == (6, b"err\n")


def by_bash(script: str, file: str, through: Through) -> subprocess.CompletedProcess[bytes]:
    """Run a bash script that has the command as its "$@"."""
    return through(file, before=["bash", "-c", script, "bash"])


# --- with a terminal ----------------------------------------------------------------------


def at_terminal(
    service: LiveService, *words: str, typed: bytes = b"", stderr: bool = False
) -> tuple[int, bytes, bytes]:
    """(exit code, stdout, what the terminal showed) where stdin is a terminal."""
    ours, theirs = pty.openpty()
    try:
        running = subprocess.Popen(
            [*COMMAND, "--url", f"http://127.0.0.1:{service.port}", *words],
            env={"PATH": os.environ["PATH"], "GAOLER_API_KEY": KEY},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs if stderr else subprocess.DEVNULL,
        )
        os.write(ours, typed)
        out, _ = running.communicate(timeout=LIMIT_S)
        os.set_blocking(ours, False)
        try:
            shown = os.read(ours, 65_536)
        except BlockingIOError:
            shown = b""
    finally:
        os.close(ours)
        os.close(theirs)
    return running.returncode, out, shown


def test_a_terminal_is_not_read_unless_asked(
    source: Callable[..., str], service: LiveService
) -> None:
    copying = source("a.sh", "cat; echo end")
    code, out, _ = at_terminal(service, copying, typed=b"not for it\n")
    assert (code, out) == (0, b"end\n")
    code, out, _ = at_terminal(service, "--stdin", copying, typed=b"for it\n\x04")
    assert (code, out) == (0, b"for it\nend\n")


def test_a_person_sees_that_it_runs_and_what_it_took(
    source: Callable[..., str], service: LiveService
) -> None:
    code, out, shown = at_terminal(service, source("a.sh", "echo out; exit 3"), stderr=True)
    assert (code, out) == (3, b"out\n")
    waiting, summary = shown.decode().rsplit("\r", 2)[0], shown.decode().splitlines()[-1]
    assert waiting.startswith(f"running a.sh on 127.0.0.1:{service.port} ...\r ")
    assert summary.startswith("gaoler run: ")
    assert " s of CPU, " in summary


# --- services that are not as usual -------------------------------------------------------


def test_a_service_with_no_slot_left_is_busy(
    source: Callable[..., str], start_service: Callable[..., LiveService]
) -> None:
    full = start_service(MAX_CONCURRENCY="1", QUEUE_LIMIT_INTERACTIVE="0")
    url = f"http://127.0.0.1:{full.port}"
    holding = subprocess.Popen(
        [*COMMAND, "--url", url, source("a.sh", "exec sleep 25")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: full.queue()["running"], "the first one has the slot")
        done = gaoler_run(url, source("b.py", ""))
    finally:
        holding.kill()
        holding.wait(LIMIT_S)
    assert done.returncode == 120
    assert done.stderr.startswith(b"gaoler run: busy: ")
    assert done.stderr.count(b"\n") == 1
    eventually(full.is_idle, "a client that was killed leaves nothing", limit_s=10)
