"""What the tests of language runtimes share: programs as tasks, and how a result is read.

The tests here use what is installed on the host, as a task does, so each says by `need`
which command it is about and is skipped where that is missing.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from gaoler.sandbox.job import Task, TaskResult
from tests.emulation import stretched
from tests.hosting import ENVIRONMENT, MIB, LiveWarden, python, task

# Time enough for a compiler or the JVM, also where all is slower; a request's ceiling and
# the longest wait of the tests bound it.
PATIENCE_MS = min(int(stretched(24_000)), 200_000)
BUDGET_MS = min(int(stretched(27_000)), 240_000)
PATIENT = {"wall_ms": PATIENCE_MS, "cpu_ms": PATIENCE_MS}

# What the service gives a task that names no limit, see config/settings.py.
USUAL = {"memory_bytes": 512 * MIB, "pids": 128, "stack_bytes": 64 * MIB}


def need(*commands: str) -> None:
    """Skip the test where a task would not find a command."""
    for command in commands:
        if shutil.which(command, path=ENVIRONMENT["PATH"]) is None:
            pytest.skip(f"{command} is not installed where tasks find it")


def program(cmd: str, *args: str, **limits: Any) -> Task:
    """A task with the service's usual limits and much time."""
    return task(cmd, *args, **{**USUAL, **PATIENT, **limits})


def script(source: str, *args: str, **limits: Any) -> Task:
    """A Python program with the service's usual limits and much time."""
    return python(source, *args, **{**USUAL, **PATIENT, **limits})


def compile_c(source: str, *flags: str, **limits: Any) -> Task:
    """A C program as ./program."""
    command = ("gcc", "-O1", "-pthread", "-o", "program", "main.c", *flags)
    return program(*command, files={"main.c": source.encode()}, **limits)


def compile_cpp(source: str, *flags: str, **limits: Any) -> Task:
    """A C++ program as ./program."""
    command = ("g++", "-std=c++17", "-pthread", "-o", "program", "main.cpp", *flags)
    return program(*command, files={"main.cpp": source.encode()}, **limits)


def run(live: LiveWarden, *tasks: Task, **options: Any) -> list[TaskResult]:
    """One task after the other in one workspace."""
    results = live.run(*tasks, **{"budget_ms": BUDGET_MS, **options})
    return [result for (result,) in results]


def built(live: LiveWarden, build: Task, *runs: Task) -> list[TaskResult]:
    """What the runs came to after a build that must go well."""
    first, *rest = run(live, build, *runs)
    assert (first.outcome, first.exit_code) == ("completed", 0), first
    return rest


def said(result: TaskResult) -> str:
    """What a program wrote that ended well and complained of nothing."""
    assert (result.outcome, result.exit_code, result.stderr) == ("completed", 0, b""), result
    return result.stdout.decode()


def ended(result: TaskResult) -> tuple[str, str | None, int | None, int | None]:
    """How it ended, in the words that a caller gets."""
    return result.outcome, result.reason, result.exit_code, result.signal
