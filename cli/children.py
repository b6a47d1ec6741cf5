"""Processes that `gaoler serve` starts and keeps."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gaoler.sandbox import process

START_LIMIT_S = 60.0
# A child that dies this often within this time will not be kept alive by one more start.
_MOST_STARTS = 5
_STARTS_WITHIN_S = 20.0
_KILL_LIMIT_S = 10.0


class StartFailed(Exception):
    """The service cannot be started; the text is for the operator."""


@dataclass(slots=True)
class Child:
    """A process that is to be kept, and when it was started lately."""

    name: str
    start: Callable[[], int]
    pid: int = 0
    starts: tuple[float, ...] = ()

    def launch(self) -> None:
        """Start it (again).  StartFailed where that happens too often."""
        now = time.monotonic()
        self.starts = (*(s for s in self.starts if now - s < _STARTS_WITHIN_S), now)
        if len(self.starts) > _MOST_STARTS:
            raise StartFailed(f"the {self.name} cannot be kept alive; see the log above")
        self.pid = self.start()


def spawn(
    arguments: list[str],
    environment: dict[str, str],
    keep: list[int],
    prepare: Callable[[], None],
) -> int:
    """Start a fresh interpreter of ours with nothing but the given descriptors."""

    def body() -> None:
        signal.set_wakeup_fd(-1)
        # `gaoler serve` alone drains: others would die of it, and gunicorn start itself anew.
        process.reset_signals(blocked={signal.SIGUSR2})
        process.close_all_but(keep)
        leave_terminal()
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        prepare()
        os.chdir("/")  # no folder of whoever started us is kept busy
        # Isolated: `-m` would look for every module in the current folder first, as root.
        os.execve(sys.executable, [sys.executable, "-I", "-X", "utf8", *arguments], environment)

    # What is sent to a child that still has our handlers must meet it later, not be lost.
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            process.in_child(body, lambda error: os.write(2, f"gaoler serve: {error!r}\n".encode()))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    return pid


def leave_terminal() -> None:
    """Read nothing of what is typed where the service was started.

    A terminal is open for reading and writing by all three numbers, and a process of another
    session may read it.  One that is open for writing alone can be opened otherwise by its
    owner only.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for descriptor in (1, 2):
        if os.isatty(descriptor):
            try:
                written = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NOCTTY)
            except OSError:  # one of outside of this container
                written = os.dup(null)
            os.dup2(written, descriptor)
            os.close(written)
    os.close(null)


def filled_pipe(data: bytes) -> int:
    """A descriptor that yields the bytes and then ends."""
    descriptor = os.memfd_create("handed", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def became_ready(ready: int) -> bool:
    """True once a byte comes, False where the other end closes or time runs out."""
    try:
        readable, _, _ = select.select([ready], [], [], START_LIMIT_S)
        return bool(readable) and bool(os.read(ready, 1))
    finally:
        os.close(ready)


def end(pid: int) -> None:
    """Kill a child and reap it; a child that hangs in the kernel is left to its end there."""
    ended = os.pidfd_open(pid)  # it is not reaped yet, so the number is its own
    try:
        os.kill(pid, signal.SIGKILL)
        if select.select([ended], [], [], _KILL_LIMIT_S)[0]:
            os.waitpid(pid, 0)
    finally:
        os.close(ended)


def signal_group(group: int, number: int) -> None:
    """Signal the group that a child of ours leads, or will lead: it may only just have begun."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, number)


def group_lives(group: int, proc: Path = Path("/proc")) -> bool:
    """True while a process of the group has not ended; the leader is a zombie of ours."""
    with os.scandir(proc) as entries:
        return any(
            _is_alive_in(group, Path(entry.path, "stat"))
            for entry in entries
            if entry.name.isdecimal()
        )


def _is_alive_in(group: int, stat: Path) -> bool:
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # it ended before it was looked at
    # What stands before is its name, which may hold anything.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 3:
        return False  # it ended while it was looked at: its file is empty by then
    return fields[0] not in ("Z", "X") and int(fields[2]) == group


def occupy_standard_descriptors() -> None:
    """Open what whoever started us has closed: else a socket of ours gets such a number, which
    every child inherits.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
