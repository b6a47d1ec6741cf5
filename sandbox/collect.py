"""Reading back the files that a task was to leave behind.

The workspace is full of whatever the task wanted there.  A throw-away child becomes the
task's own user, without any right beyond it, and opens each path through no link and into
no other mount; what is not a regular file is reported, never read; a size is what was
read, not what was promised.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator

from gaoler.sandbox import capabilities, inputs, paths, process, syscalls, wire
from gaoler.sandbox.job import Collected

MISSING = "missing"
NOT_A_REGULAR_FILE = "not_a_regular_file"
TOO_LARGE = "too_large"
UNREADABLE = "unreadable"
_ERRORS = ("", MISSING, NOT_A_REGULAR_FILE, TOO_LARGE, UNREADABLE)

# For each path: its length, which of _ERRORS, and how many bytes of the file follow.
_ENTRY = struct.Struct("<IBQ")
_CHUNK = 1 << 20
# What no task can bring about: then the result is not told at all.
_OURS = inputs.OURS | {errno.ENOMEM}


def collect(job: int, wanted: wire.Range, uid: int, left: int) -> tuple[Collected, ...]:
    """The files at the paths that the job lists at `wanted`, together at most `left` bytes.

    The list is a client's: the child parses it, not we.  Raises OSError.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        process.close_all_but([write_end, job])
        process.in_child(lambda: _child(job, wanted, uid, left, write_end), lambda _: None)
    os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as file:
            found = tuple(_entries(file.read))
    finally:
        status = process.wait_for(pid)
    if status != 0:
        raise OSError(0, "the collector died")
    return found


def _entries(read: Callable[[int], bytes]) -> Iterator[Collected]:
    while head := read(_ENTRY.size):
        if len(head) != _ENTRY.size:
            raise OSError(0, "the collector died")
        length, error, size = _ENTRY.unpack(head)
        path, data = read(length), read(size)
        if len(path) != length or len(data) != size:
            raise OSError(0, "the collector died")
        yield Collected(path.decode(), data, _ERRORS[error] or None)


def _child(job: int, wanted: wire.Range, uid: int, left: int, out: int) -> None:
    os.setgroups([])
    capabilities.drop_bounding()
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # The change of credentials took the parent-death signal; a dead parent means a broken
    # pipe at the next write all the same.
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.capset(0)
    try:
        box = inputs.open_box()
    except inputs.InputRefused:
        box = -1
    with os.fdopen(out, "wb") as file:
        for path in json.loads(wire.read_range(job, wanted)):
            error, data = (UNREADABLE, b"") if box < 0 else read_file(box, path, left)
            left -= len(data)
            name = path.encode()
            file.write(_ENTRY.pack(len(name), _ERRORS.index(error), len(data)))
            file.write(name)
            file.write(data)


def read_file(box: int, path: str, left: int) -> tuple[str, bytes]:
    """(error or "", bytes) of one path below the folder `box`."""
    if paths.fault(path) is not None:
        return MISSING, b""
    try:
        # O_NONBLOCK: a FIFO would block the open until somebody writes.
        file = paths.open_beneath(box, paths.normalise(path), os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return MISSING, b""
    except PermissionError:
        return UNREADABLE, b""
    except OSError as error:  # a link on the way, a socket, a name that is a file's
        if error.errno in _OURS:
            raise
        return NOT_A_REGULAR_FILE, b""
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            return NOT_A_REGULAR_FILE, b""
        if info.st_size > left:
            return TOO_LARGE, b""
        return _read_at_most(file, left)
    except OSError as error:
        if error.errno in _OURS:
            raise
        return UNREADABLE, b""
    finally:
        os.close(file)


def _read_at_most(file: int, left: int) -> tuple[str, bytes]:
    """Another task of the step may still be writing: the size is found by reading."""
    parts, size = [], 0
    while chunk := os.read(file, _CHUNK):
        size += len(chunk)
        if size > left:
            return TOO_LARGE, b""
        parts.append(chunk)
    return "", b"".join(parts)
