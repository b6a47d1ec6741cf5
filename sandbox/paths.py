"""The rule for workspace paths, and opening them without ever leaving the workspace.

The rule is applied twice: at admission, so that a client gets a 400, and again by the
kernel when the path is opened, because what stands in the workspace by then was put there
by programs that nobody trusts.
"""

from __future__ import annotations

import os

from gaoler.sandbox import syscalls

LONGEST_NAME = 255
LONGEST_PATH = 4095

# Never out of the workspace, through no link, into no other mount.
BENEATH = (
    syscalls.RESOLVE_BENEATH
    | syscalls.RESOLVE_NO_SYMLINKS
    | syscalls.RESOLVE_NO_MAGICLINKS
    | syscalls.RESOLVE_NO_XDEV
)


def fault(path: str) -> str | None:
    """What is wrong with a workspace-relative path, or None."""
    if not path:
        return "is empty"
    if "\0" in path:
        return "contains a NUL"
    if path.startswith("/"):
        return "is absolute"
    if ".." in path.split("/"):
        return 'contains ".."'
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "has a lone surrogate"
    if len(encoded) > LONGEST_PATH:
        return f"is longer than {LONGEST_PATH} bytes"
    if any(len(name) > LONGEST_NAME for name in encoded.split(b"/")):
        return f"has a name longer than {LONGEST_NAME} bytes"
    return None


def normalise(path: str) -> str:
    """The same path without empty and "." names; "." for the workspace itself."""
    return "/".join(name for name in path.split("/") if name not in ("", ".")) or "."


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below the folder descriptor.  Raises OSError (ELOOP for any link)."""
    return syscalls.openat2(folder, path, flags | os.O_NOFOLLOW, mode, BENEATH)
