"""Landlock: a second wall behind the mount table.

Levels are asked for by name, as the kernel's documentation numbers them, never "whatever
is there": ABI 2 (5.19) is the least, since before it a rename between two folders is
refused and builds break; the scopes of ABI 6 are used where they are there, and their
absence is reported as a degraded layer.
"""

from __future__ import annotations

import os

from gaoler.sandbox import syscalls

LEAST_ABI = 2
SCOPES_ABI = 6

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REFER = 1 << 13  # ABI 2
_TRUNCATE = 1 << 14  # ABI 3
_IOCTL_DEV = 1 << 15  # ABI 5
_ALL_OF_ABI_1 = (1 << 13) - 1
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11

_NET_ABI = 4
_SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
_SCOPE_SIGNAL = 1 << 1


def handled_access(abi: int) -> int:
    """The rights that a ruleset of this ABI decides on."""
    access = _ALL_OF_ABI_1 | _REFER
    if abi >= 3:
        access |= _TRUNCATE
    if abi >= 5:
        access |= _IOCTL_DEV
    return access


def make_ruleset(abi: int, readable: tuple[str, ...], writable: tuple[str, ...]) -> int:
    """A ruleset for the jail that the caller stands in; returns its descriptor.

    Folders are listed everywhere; files are read and executed below `readable`, and
    everything but making device nodes is done below `writable`.  Device nodes in /dev are
    read and written, without ioctl.  So a part of the host that came to be mounted anywhere
    else would have names and no contents.
    """
    access = handled_access(abi)
    # Ruleset structs grew with the ABI: fs (8 bytes), net (4), scoped (6).
    size = 24 if abi >= SCOPES_ABI else 16 if abi >= _NET_ABI else 8
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL
    ruleset = syscalls.landlock_create_ruleset(access, 0, scoped, size)
    _allow(ruleset, "/", _READ_DIR)
    for folder in readable:
        _allow(ruleset, folder, _EXECUTE | _READ_FILE | _READ_DIR)
    _allow(ruleset, "/dev", access & (_READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE))
    for folder in writable:
        _allow(ruleset, folder, access & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))
    return ruleset


def _allow(ruleset: int, path: str, access: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.landlock_allow_beneath(ruleset, folder, access)
    finally:
        os.close(folder)
