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

START_LIMIT_S = 30.0
# A child that dies this often within this time will not be kept alive by one more start.
_MOST_STARTS = 5
_STARTS_WITHIN_S = 20.0


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
        process.reset_signals()
        process.close_all_but(keep)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        prepare()
        os.execve(sys.executable, [sys.executable, "-X", "utf8", *arguments], environment)

    pid = os.fork()
    if pid == 0:
        process.in_child(body, lambda error: os.write(2, f"gaoler serve: {error!r}\n".encode()))
    return pid


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


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def group_lives(group: int) -> bool:
    """True while a process of the group has not ended; the leader is a zombie of ours."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (
                    Path(entry.path, "stat")
                    .read_text(encoding="utf-8", errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                if fields[0] not in ("Z", "X") and int(fields[2]) == group:
                    return True
    return False
