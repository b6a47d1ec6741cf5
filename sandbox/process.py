"""What every process of a sandbox does when it begins and when it fails.

A forked child of ours runs inside `in_child`: it never returns into its parent's code,
and an exception ends it with a report of the stage and errno instead of a traceback.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterable
from typing import NoReturn

from gaoler.sandbox import syscalls

PARENT_GONE = 70
BROKEN = 71


class Stages:
    """Names the stage that a process is in, so that a failure can say where it happened."""

    def __init__(self) -> None:
        self.now = "start"

    def enter(self, name: str) -> None:
        self.now = name


def in_child(body: Callable[[], object], on_failure: Callable[[BaseException], object]) -> NoReturn:
    """Run a forked child's body and end the process, whatever happens."""
    status = BROKEN
    try:
        body()
        status = 0
    except BaseException as error:  # noqa: BLE001 - it must not run on in its parent's frames
        try:
            on_failure(error)
        except BaseException:  # noqa: BLE001 - nobody is left to tell
            status = BROKEN
    finally:
        os._exit(status)


def errno_of(error: BaseException) -> int:
    return error.errno or 0 if isinstance(error, OSError) else 0


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor but 0, 1, 2 and those given."""
    low = 3
    for descriptor in sorted(set(keep)):
        if descriptor >= low:
            os.closerange(low, descriptor)
            low = descriptor + 1
    os.closerange(low, 1 << 20)


def bind_to_parent(parent: int) -> None:
    """End with the parent.  To be called again after each change of credentials."""
    try:
        syscalls.die_with_parent(parent, signal.SIGKILL)
    except ProcessLookupError:
        os._exit(PARENT_GONE)


def reset_signals(blocked: Iterable[int] = ()) -> None:
    """Default dispositions and an empty mask, as an exec'ed program expects them.

    `blocked`: what the program is not to hear of.
    """
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # kept by libc for its threads
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def wait_for(pid: int) -> int:
    """The wait status of a child."""
    return os.waitpid(pid, 0)[1]


_OOM_PROTECTION = -500


def protect_from_oom() -> bool:
    """Make the OOM killer prefer tasks to us and all we fork; False where it may not be."""
    try:
        _adjust_oom_score(_OOM_PROTECTION)
    except PermissionError:
        return False
    return True


def unprotect_from_oom() -> None:
    """For the process that becomes a task."""
    _adjust_oom_score(0)


def _adjust_oom_score(score: int) -> None:
    write_file("/proc/self/oom_score_adj", str(score))


def write_file(path: str, text: str) -> None:
    """One write to one of the kernel's files.  Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def raise_descriptor_limit() -> None:
    """As many descriptors as the host lets us have; a jail holds about a dozen."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def uid_of(pid: int) -> int | None:
    """The real UID of a process; None where it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return None
