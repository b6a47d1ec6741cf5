"""One service for each STATE_DIR, and no two with the same users for their tasks.

A running service holds the lock beside its runtime folder; the lock's file says which UIDs
it leases from, for others that start on the same host.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gaoler.config.settings import Settings, SettingsError


class AlreadyRuns(Exception):
    """Another service has this STATE_DIR."""


def lock(settings: Settings, runtime_dir: str, gid: int) -> int:
    """Take the instance's lock and make its runtime folder; a descriptor to be kept open.

    Raises AlreadyRuns, and SettingsError where a neighbour has some of the same UIDs.
    """
    os.makedirs(settings.runtime_dir, 0o755, exist_ok=True)
    taken = _try_lock(f"{runtime_dir}.lock")
    if taken is None:
        raise AlreadyRuns(f"another gaoler with STATE_DIR={settings.state_dir} runs already")
    first, last = settings.uid_range
    os.ftruncate(taken, 0)
    os.pwrite(taken, f"{first}-{last}\n".encode(), 0)
    _check_neighbours(settings, runtime_dir)
    os.makedirs(os.path.join(runtime_dir, "root"), 0o755, exist_ok=True)
    # The socket lies in it: the service's user passes, nobody else.
    os.chmod(runtime_dir, 0o750)
    os.chown(runtime_dir, 0, gid)
    return taken


def _check_neighbours(settings: Settings, runtime_dir: str) -> None:
    first, last = settings.uid_range
    for path in Path(settings.runtime_dir).glob("gaoler-*.lock"):
        if str(path) == f"{runtime_dir}.lock":
            continue
        other = _try_lock(str(path))
        if other is not None:
            os.close(other)  # nobody holds it: no such service runs
            continue
        low, _, high = path.read_text(encoding="ascii").strip().partition("-")
        if high and int(low) <= last and first <= int(high):
            raise SettingsError(
                f"UID_RANGE={first}-{last}: allowed is a range that no other gaoler on this "
                f"host has; one that runs has {low}-{high}"
            )


def _try_lock(path: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None where somebody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
