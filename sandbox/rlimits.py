"""Resource limits of a task: what the cgroup does not bound."""

from __future__ import annotations

import resource

from gaoler.sandbox.job import Limits

OPEN_FILES = 1024


def apply(limits: Limits) -> None:
    """Set the task's own limits.  A hard limit already lower stays as it is.

    RLIMIT_CORE is 1, not 0: 0 would not stop a core pattern that pipes into a program.
    """
    _lower(resource.RLIMIT_STACK, limits.stack_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_CORE, 1)
    _lower(resource.RLIMIT_MEMLOCK, 8 << 20)
    _lower(resource.RLIMIT_MSGQUEUE, 1 << 20)
    _lower(resource.RLIMIT_SIGPENDING, 4096)
    _lower(resource.RLIMIT_NICE, 0)
    _lower(resource.RLIMIT_RTPRIO, 0)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
