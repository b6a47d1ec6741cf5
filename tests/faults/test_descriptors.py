"""No descriptor of ours reaches the program, so it can say nothing in our name.

The looks are those of programs that open nothing before: a static one that is all ours, and
`ls`.  What the liar writes to whatever it can reach may appear as its own output alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gaoler.sandbox import wire
from gaoler.sandbox.job import Task, TaskResult
from tests.hosting import LiveWarden, piped, task

# Before it opens anything else it lists what there is beside the list itself.
_LOOK = r"""
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL) return 1;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        char path[300], target[300] = "";
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(list)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) < 0) strcpy(target, "?");
        fprintf(stderr, "%s %s\n", entry->d_name, target);
    }
    return 0;
}
"""

_LIE = r"""
import os, sys

lie = open(sys.argv[1], 'rb').read()

def tell(number):
    try:
        os.set_blocking(number, False)
        os.write(number, lie)
    except OSError:
        pass

for number in range(1024):
    tell(number)
for folder in ('/proc/self/fd', '/dev/fd', '/proc/thread-self/fd', '/proc/1/fd'):
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        for flags in (os.O_WRONLY, os.O_RDWR):
            try:
                opened = os.open(folder + '/' + name, flags | os.O_NONBLOCK)
            except OSError:
                continue
            tell(opened)
            os.close(opened)
for path in ('/dev/stdin', '/dev/stdout', '/dev/stderr'):
    try:
        opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        tell(opened)
        os.close(opened)
    except OSError:
        pass
os._exit(42)
"""


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The program that looks, without any library that could open something."""
    folder: Path = tmp_path_factory.mktemp("look")
    (folder / "look.c").write_text(_LOOK)
    command = ["gcc", "-static", "-O1", "-o", str(folder / "look"), str(folder / "look.c")]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "look").read_bytes()


def three_pipes(seen: bytes) -> bool:
    lines = [line.split() for line in seen.decode().splitlines()]
    return [number for number, _ in lines] == ["0", "1", "2"] and all(
        target.startswith("pipe:[") for _, target in lines
    )


def looking(look: bytes, kind: str, name: str = "look") -> Task:
    files = {name: look}
    if kind == "inputs":
        files.update({f"deep/{number}/file": b"x" * 5000 for number in range(20)})
    return task(
        f"/box/{name}",
        files=files,
        stdin=b"given" if kind == "stdin" else b"",
        collect=(name, "none") if kind == "collect" else (),
        profile="native_v1" if kind == "native_v1" else "standard_v1",
    )


@pytest.mark.parametrize("kind", ["plain", "stdin", "inputs", "collect", "native_v1"])
def test_a_program_begins_with_three_pipes_and_no_more(
    warden: LiveWarden, look: bytes, kind: str
) -> None:
    # The second stands for the spares, which were forked while the first one ran.
    for (result,) in warden.run(looking(look, kind), looking(look, kind)):
        assert (result.outcome, result.exit_code) == ("completed", 0), result
        assert three_pipes(result.stderr), result.stderr


def test_piped_programs_begin_with_three_pipes_and_no_more(warden: LiveWarden, look: bytes) -> None:
    tasks = [looking(look, "collect", f"look-{number}") for number in range(4)]
    ring = piped(*tasks[:2], pipes=((0, 1), (1, 0)))
    line = piped(*tasks, pipes=((0, 1), (1, 2), (2, 3)))
    for results in warden.run(ring, line):
        for result in results:
            assert (result.outcome, result.exit_code) == ("completed", 0), result
            assert three_pipes(result.stderr), result.stderr


def test_programs_side_by_side_begin_with_three_pipes_each_of_its_own(
    warden: LiveWarden, look: bytes
) -> None:
    (results,) = warden.run([looking(look, "plain", f"look-{n}") for n in range(4)])
    assert all(three_pipes(result.stderr) for result in results), results
    pipes = [line.split()[1] for result in results for line in result.stderr.splitlines()]
    assert len(set(pipes)) == 12


def test_ls_finds_what_it_has_opened_itself_and_three_pipes(warden: LiveWarden) -> None:
    result = warden.run_one(task("/bin/ls", "-l", "/proc/self/fd"))
    assert result.exit_code == 0, result
    found = dict(
        line.split(" -> ")[0].split()[-1:] + line.split(" -> ")[1:]
        for line in result.stdout.decode().splitlines()
        if " -> " in line
    )
    assert sorted(found) == ["0", "1", "2", "3"]
    assert found.pop("3").startswith("/proc/")  # the folder that it lists
    assert all(target.startswith("pipe:[") for target in found.values()), found


# --- a program that speaks as if it were its supervisor or jailer -------------------------


def lies() -> bytes:
    """A result with which it had done well, and the end of the request."""
    forged = TaskResult("completed", exit_code=0, stdout=b"forged")
    done = [wire.frame(wire.TASK_DONE, wire.pack_result(0, n, forged)) for n in range(2)]
    return b"".join(
        [
            *done,
            wire.json_frame(wire.FINISHED, {"exec_ns": 1}),
            wire.json_frame(wire.FAILED, {"code": "sandbox_setup_failed", "stage": "forged"}),
        ]
    )


def liar(lie: bytes, name: str, **options: Any) -> Task:
    """Its files have names of their own: those of tasks side by side are in one workspace."""
    files = {f"{name}.py": _LIE.encode(), f"{name}.lie": lie}
    return task("/usr/bin/python3", f"{name}.py", f"{name}.lie", files=files, **options)


def is_the_truth(result: TaskResult, lie: bytes) -> bool:
    """It ended as it did, and what it wrote is what it wrote: the lie, again and again."""
    out, err = result.stdout, result.stderr
    return (
        (result.outcome, result.exit_code) == ("completed", 42)
        and b"Traceback" not in err
        and out.replace(lie, b"") == b""
        and err.replace(lie, b"") == b""
        and err != b""
    )


def test_a_program_cannot_say_its_result_itself(warden: LiveWarden) -> None:
    lie = lies()
    told = liar(lie, "liar", collect=("liar.lie",), stdin=b"x" * 100)
    for (result,) in warden.run(told, told):
        assert is_the_truth(result, lie), result
        assert result.stdout.startswith(lie)
        assert result.files[0].data == lie


def test_piped_programs_cannot_say_anothers_result(warden: LiveWarden) -> None:
    lie = lies()
    liars = [liar(lie, f"liar-{number}") for number in range(2)]
    for result in warden.run(piped(*liars, pipes=((0, 1), (1, 0))))[0]:
        assert is_the_truth(result, lie), result
    for result in warden.run(liars)[0]:
        assert is_the_truth(result, lie), result


def test_a_program_cannot_talk_as_the_parked_process_did(warden: LiveWarden) -> None:
    """The messages before exec: that it failed, was refused, or began at another time."""
    lie = b'{"failed":"x","errno":1,"text":"x","refused":"x","exec_failed":"x","exec_ns":1}'
    result = warden.run_one(liar(lie, "liar"))
    assert is_the_truth(result, lie), result
