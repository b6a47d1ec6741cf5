"""What the probes share: how a hostile program says what it saw, and how the host is looked at.

A probe is a small program of ours that tries one thing and tells what came of it.  The test
around it looks from both sides: at what the attacker saw, and at the host.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gaoler.sandbox.job import Task, TaskResult
from tests.hosting import LiveWarden, eventually, mounts_and_processes, python

# What every probe may use.  `attempt` never raises: it gives "done" or the errno's name.
PRELUDE = r"""
import ctypes, errno, json, os, signal, socket, stat, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def wide(argument):
    return ctypes.c_long(argument) if isinstance(argument, int) else argument

def syscall(number, *arguments):
    "The call's result, or its errno's name as text."
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(wide, arguments))
    if result == -1 and ctypes.get_errno():
        return errno.errorcode[ctypes.get_errno()]
    return result

def attempt(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return 'done'

def fate(body):
    "How a child that runs `body` ends: ('exit', code) or ('signal', number)."
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = body() or 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return ['signal', os.WTERMSIG(status)]
    return ['exit', os.WEXITSTATUS(status)]

def tell(**facts):
    sys.stdout.write(json.dumps(facts) + '\n')
    sys.stdout.flush()

"""


def attack(source: str, *args: str, **limits: Any) -> Task:
    """A probe as a task.  It tells what it saw by `tell(name=value, …)`.

    Tasks that share a workspace share /box/probe.py: give them steps or requests of their own.
    """
    made = python(PRELUDE + source, *args, **limits)
    # Without the packages of the site, which no probe needs, it starts in half the time.
    return dataclasses.replace(made, args=("-S", *made.args))


def told(result: TaskResult) -> dict[str, Any]:
    """All that a probe told, later words over earlier ones."""
    seen: dict[str, Any] = {}
    for line in result.stdout.decode().splitlines():
        seen.update(json.loads(line))
    return seen


def see(live: LiveWarden, source: str, *args: str, **limits: Any) -> dict[str, Any]:
    """Run one probe to its own end and give what it told."""
    result = live.run_one(attack(source, *args, **limits))
    assert result.outcome == "completed", result
    assert (result.exit_code, result.stderr) == (0, b""), result
    return told(result)


# --- the host -----------------------------------------------------------------------------

_WATCHED_FILES = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/overcommit_memory",
    "/etc/passwd",
    "/etc/ld.so.preload",
)
_WORLD_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")


@contextmanager
def host_untouched(live: LiveWarden) -> Iterator[None]:
    """What is run inside changes nothing of the host, and nothing of it is left."""
    before = _picture(live)
    yield
    eventually(
        lambda: live.jails() == [],
        lambda: f"jails are left: {live.jails()}",
    )
    eventually(
        lambda: _picture(live) == before,
        lambda: f"the host has changed: {before} is now {_picture(live)}",
    )


def _picture(live: LiveWarden) -> dict[str, object]:
    """What a task could have changed, as far as it is this instance's or everybody's."""
    low, high = live.settings.uid_range
    assert live.process is not None
    return {
        "warden": (live.process.pid, live.process.poll()),
        "descriptors": len(os.listdir(f"/proc/{live.process.pid}/fd")),
        "files": {path: _stamp(path) for path in _WATCHED_FILES},
        "planted": [str(p) for folder in _WORLD_WRITABLE for p in _planted(folder, low, high)],
        "ipc": _shared_memory_of(low, high),
        "left": mounts_and_processes(live.instance, (low, high)),
    }


def _stamp(path: str) -> tuple[int, int] | None:
    """Content and owner of a file in short; None where it is not there."""
    try:
        return hash(Path(path).read_bytes()), os.stat(path).st_uid
    except FileNotFoundError:
        return None


def _planted(folder: str, low: int, high: int) -> list[Path]:
    """What the UIDs own in a folder that everybody may write to."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    found = []
    for entry in entries:
        try:
            if low <= entry.stat(follow_symlinks=False).st_uid <= high:
                found.append(Path(entry.path))
        except FileNotFoundError:
            continue
    return found


def _shared_memory_of(low: int, high: int) -> list[str]:
    """System V objects of the host's namespace that the UIDs own or made."""
    found = []
    for kind in ("shm", "sem", "msg"):
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        names = lines[0].split()
        for line in lines[1:]:
            fields = dict(zip(names, line.split(), strict=False))
            if any(low <= int(fields[name]) <= high for name in ("uid", "cuid")):
                found.append(f"{kind} {line}")
    return found
