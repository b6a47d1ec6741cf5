"""Laying out a task's input files, as the task's own user, inside its own walls.

An earlier task may have planted links, devices' names, FIFOs or folders where a file is to
go.  Nothing is followed and nothing is opened that was there before: a regular file in the
way is replaced by a new one (so that a hard link to it, or a program that still runs from
it, keeps the old bytes); anything else refuses the task.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from gaoler.sandbox import mounts, paths, wire

_CHUNK = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# What no task can bring about: the fault is ours, or the host's, and so is the failure.
OURS = frozenset({errno.EIO, errno.ENFILE, errno.EMFILE})


class InputRefused(Exception):
    """The task's inputs cannot be laid out: its outcome is `setup_failed`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def write_all(job: int, files: list[list[Any]]) -> None:
    """Write files given as [path, mode, offset, length].  Raises InputRefused."""
    if not files:
        return
    base = wire.file_base(job)
    box = open_box()
    try:
        for path, mode, offset, length in files:
            write(box, path, mode, job, base + offset, length)
    finally:
        os.close(box)


def open_box() -> int:
    """The workspace as a descriptor, for its owner.  Raises InputRefused.

    It belongs to the task's user, so an earlier task may have closed it to itself.
    """
    try:
        mode = stat.S_IMODE(os.stat(mounts.BOX).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(mounts.BOX, mode | stat.S_IRWXU)
        return os.open(mounts.BOX, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in OURS:
            raise
        raise InputRefused("bad_path") from error  # a sibling that goes on closing it


def write(box: int, path: str, mode: int, source: int, offset: int, length: int) -> None:
    """Write one file below the folder `box` from a range of the descriptor `source`."""
    if paths.fault(path) is not None:
        raise InputRefused("bad_path")
    parent, _, name = paths.normalise(path).rpartition("/")
    try:
        folder = _make_folders(box, parent)
        try:
            _make_way(folder, name)
            _fill(folder, name, mode, source, offset, length)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in OURS:
            raise
        raise InputRefused("workspace_full" if error.errno in _FULL else "bad_path") from error


def _make_folders(box: int, path: str) -> int:
    """A descriptor of the folder, made with its parents where they are missing."""
    if not path:
        return os.dup(box)
    flags = os.O_DIRECTORY | os.O_RDONLY
    try:
        return paths.open_beneath(box, path, flags)
    except FileNotFoundError:
        pass
    folder = os.dup(box)
    for name in path.split("/"):
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            pass
        try:
            below = paths.open_beneath(folder, name, flags)
        finally:
            os.close(folder)
        folder = below
    return folder


def _make_way(folder: int, name: str) -> None:
    try:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(kind):
        raise InputRefused("bad_path")
    os.unlink(name, dir_fd=folder)


def _fill(folder: int, name: str, mode: int, source: int, offset: int, length: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    file = paths.open_beneath(folder, name, flags, 0o600)
    try:
        end = offset + length
        while offset < end:
            chunk = os.pread(source, min(_CHUNK, end - offset), offset)
            if not chunk:
                raise wire.ProtocolError("the memfd ends early")
            offset += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(file, view) :]
        os.fchmod(file, mode)
    finally:
        os.close(file)


def enter_folder(path: str) -> None:
    """Make the workspace folder the current one.  Raises InputRefused."""
    if paths.fault(path) is not None:
        raise InputRefused("bad_path")
    box = open_box()
    try:
        folder = paths.open_beneath(box, paths.normalise(path), os.O_DIRECTORY | os.O_RDONLY)
        try:
            os.fchdir(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in OURS:
            raise
        raise InputRefused("working_dir") from error
    finally:
        os.close(box)
