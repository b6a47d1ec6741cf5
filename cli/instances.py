"""One service for each STATE_DIR, and no two with the same users for their tasks.

A running service holds two locks.  That on the folder STATE_DIR itself is what makes it the
only one, wherever another has its RUNTIME_DIR: it is on the folder, not on a file in it,
since the service's user could put another file in its place.  The lock beside the runtime
folder says in its file, for others on the same host,

    LOW-HIGH    which UIDs are leased; empty where the service is a stub and leases none
    PID START   which process the service is, and when that was started, in the kernel's ticks
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import stat
from pathlib import Path

from gaoler.cli.children import StartFailed
from gaoler.config.settings import Settings, SettingsError
from gaoler.sandbox import process


class AlreadyRuns(Exception):
    """Another service has this STATE_DIR."""


def make_state_dir(settings: Settings) -> None:
    """Make STATE_DIR where it is missing.  StartFailed where that cannot be."""
    try:
        os.makedirs(settings.state_dir, 0o750, exist_ok=True)
    except OSError as error:
        raise StartFailed(
            f"STATE_DIR={settings.state_dir}: allowed is a folder that can be made; "
            f"{error.strerror}"
        ) from None


def check_state_dir(settings: Settings, user: pwd.struct_passwd) -> None:
    """StartFailed where STATE_DIR is no folder that the service's user owns."""
    os.close(_open_state_dir(settings, user))


def lock(settings: Settings, runtime_dir: str, user: pwd.struct_passwd) -> tuple[int, int]:
    """Take the instance's locks and make its runtime folder; descriptors to be kept open.

    Raises AlreadyRuns, StartFailed where a folder cannot be used, and SettingsError where a
    neighbour has some of the same UIDs.
    """
    state = _lock_state_dir(settings, user)
    try:
        return state, _lock_runtime_dir(settings, runtime_dir, user.pw_gid)
    except OSError as error:
        os.close(state)
        where = f": {error.filename}" if error.filename else ""
        raise StartFailed(
            f"RUNTIME_DIR={settings.runtime_dir}: allowed is a folder that can be made and "
            f"written; {error.strerror}{where}"
        ) from None
    except BaseException:
        os.close(state)
        raise


def _open_state_dir(settings: Settings, user: pwd.struct_passwd) -> int:
    folder, name = settings.state_dir, user.pw_name
    allowed = f"STATE_DIR={folder}: allowed is a folder that {name} owns"
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailed(f"{allowed}; {error.strerror}; bin/serve makes it") from None
    if os.fstat(descriptor).st_uid != user.pw_uid:
        os.close(descriptor)
        raise StartFailed(f"{allowed}; it is another's")
    return descriptor


def _lock_state_dir(settings: Settings, user: pwd.struct_passwd) -> int:
    descriptor = _open_state_dir(settings, user)
    try:
        if _holds(descriptor):
            return descriptor
    except OSError as error:  # some file systems of other hosts lock no folder
        os.close(descriptor)
        raise StartFailed(
            f"STATE_DIR={settings.state_dir}: allowed is a folder that can be locked; "
            f"{error.strerror}"
        ) from None
    os.close(descriptor)
    raise _already_runs(settings)


def _lock_runtime_dir(settings: Settings, runtime_dir: str, gid: int) -> int:
    os.makedirs(settings.runtime_dir, 0o755, exist_ok=True)
    _check_owners(settings.runtime_dir)
    taken = _try_lock(f"{runtime_dir}.lock")
    if taken is None:
        raise _already_runs(settings)
    try:
        os.ftruncate(taken, 0)
        os.pwrite(taken, _claims(settings), 0)
        if settings.runner_mode != "stub":
            _check_neighbours(settings, runtime_dir)
        os.makedirs(os.path.join(runtime_dir, "root"), 0o755, exist_ok=True)
        # The socket lies in it: the service's user passes, nobody else.
        os.chmod(runtime_dir, 0o750)
        os.chown(runtime_dir, os.geteuid(), gid)
    except BaseException:
        os.close(taken)
        raise
    return taken


def _claims(settings: Settings) -> bytes:
    """What the head of this module says of the lock's file."""
    first, last = settings.uid_range
    leased = "" if settings.runner_mode == "stub" else f"{first}-{last}"
    return f"{leased}\n{os.getpid()} {_started(os.getpid())}\n".encode()


def _already_runs(settings: Settings) -> AlreadyRuns:
    return AlreadyRuns(f"another gaoler with STATE_DIR={settings.state_dir} runs already")


def _check_owners(runtime_dir: Path) -> None:
    """StartFailed where another than root or us could put something in the place of RUNTIME_DIR.

    Files in it are made and opened by name, in general by root.
    """
    trusted = {0, os.geteuid()}
    who = "nobody but root" if os.geteuid() == 0 else "nobody but root and its user"
    resolved = runtime_dir.resolve()
    for folder in (resolved, *resolved.parents):
        info = folder.stat()
        # In a sticky folder, such as /tmp, nobody renames what is root's.
        open_to_others = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX
        if info.st_uid not in trusted or open_to_others:
            raise StartFailed(
                f"RUNTIME_DIR={runtime_dir}: allowed is a folder that {who} can "
                f"replace; others can write to {folder}"
            )


def _check_neighbours(settings: Settings, runtime_dir: str) -> None:
    first, last = settings.uid_range
    for path in Path(settings.runtime_dir).glob("gaoler-*.lock"):
        if str(path) == f"{runtime_dir}.lock":
            continue
        other = _try_lock(str(path))
        if other is not None:
            os.close(other)  # nobody holds it: no such service runs
            continue
        leased = path.read_text(encoding="ascii").partition("\n")[0]
        low, _, high = leased.partition("-")
        if high and int(low) <= last and first <= int(high):
            raise SettingsError(
                f"UID_RANGE={first}-{last}: allowed is a range that no other gaoler on this "
                f"host has; one that runs has {low}-{high}"
            )


def _try_lock(path: str) -> int | None:
    """A descriptor that holds the lock until it is closed; None where somebody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if _holds(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _holds(descriptor: int) -> bool:
    """Lock what is open there; False where somebody else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- finding the one that runs ------------------------------------------------------------


def find(runtime_dir: str) -> int | None:
    """A pidfd of the service that has this runtime folder; None where none runs.

    The lock itself is left alone: a service that starts at this moment must find it free.
    """
    try:
        descriptor = os.open(f"{runtime_dir}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        owner, words = os.fstat(descriptor).st_uid, file.read(256).partition("\n")[2].split()
    if len(words) != 2 or not all(map(str.isdecimal, words)):
        return None
    return _open_process(int(words[0]), int(words[1]), owner)


def _open_process(pid: int, started: int, uid: int) -> int | None:
    """A pidfd of the process, None where it has ended or the number is another's by now.

    `uid` is the file's owner's: nobody can make us signal a process of another.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    # Looked at after it was opened: what is true now is true of what the descriptor is of.
    same = _started(pid) == started and process.uid_of(pid) == uid
    if same and not select.select([descriptor], [], [], 0)[0]:
        return descriptor
    os.close(descriptor)
    return None


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the boot; None where there is none."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # What stands before is its name, which may hold anything.
        return int(text.rpartition(")")[2].split()[19])
    return None
