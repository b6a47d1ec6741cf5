"""Emptying every capability set, in the only order that works.

The bounding set comes first: dropping from it needs CAP_SETPCAP, which the other calls
take away.  In a new user namespace it is silently full again, so it is dropped after the
namespace was made.
"""

from __future__ import annotations

import errno

from gaoler.sandbox import syscalls

CHOWN = 0  # a pipe is given to the task's user, so that it can be opened by name
DAC_OVERRIDE = 1  # the socket's folder is not ours once it is the service user's
KILL = 5
SETGID = 6
SETUID = 7
SETPCAP = 8  # dropping from the bounding set
NET_ADMIN = 12  # raising the loopback of a new network namespace
SYS_ADMIN = 21  # mounts and namespaces
SYS_RESOURCE = 24  # keeping our own processes from the OOM killer

# What warden, jailer and supervisor need while tasks run.  Making device nodes is not
# among it: the template has them by then.
CHAIN = (CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_ADMIN, SYS_RESOURCE)


def drop_all() -> None:
    """Empty bounding, ambient, permitted, effective and inheritable sets."""
    drop_bounding()
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.capset(0)


def drop_bounding(kept: tuple[int, ...] = ()) -> None:
    """Empty the bounding set but for `kept`: no exec can give back what is not in it."""
    capability = 0
    while True:
        if capability not in kept:
            try:
                syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno == errno.EINVAL:  # one past the last that this kernel knows
                    return
                raise
        capability += 1


def keep_only(kept: tuple[int, ...]) -> None:
    """Give up every other capability for good, for this process and all it forks.

    One that the process does not have stays absent.
    """
    drop_bounding(kept)
    with open("/proc/self/status", encoding="ascii") as file:
        permitted = next(int(line.split()[1], 16) for line in file if line.startswith("CapPrm:"))
    syscalls.capset(permitted & sum(1 << c for c in kept))
