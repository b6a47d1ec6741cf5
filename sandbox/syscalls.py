"""System calls that the standard library does not offer, named after the calls.

The only module that knows ctypes.  Every wrapper raises OSError with the call's name on
failure, through one funnel, `_check`.  Numbers are those of x86-64 and arm64 where they
agree (all calls from 424 on do); the older ones go through libc's own functions.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

AT_FDCWD = -100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 0x1
MOVE_MOUNT_F_EMPTY_PATH = 0x4

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_GET_ACTION_AVAIL = 2

LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1

KEYCTL_JOIN_SESSION_KEYRING = 1

# The same on every architecture since 5.1; the four before differ and are looked up.
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_OPENAT2 = 437
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_OLDER = {
    "x86_64": {"pivot_root": 155, "keyctl": 250, "seccomp": 317, "capset": 126},
    "aarch64": {"pivot_root": 41, "keyctl": 219, "seccomp": 277, "capset": 91},
}
_NUMBERS = _OLDER.get(os.uname().machine, _OLDER["x86_64"])

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _check(result: int, call: str) -> int:
    """The one place where a failed call becomes an OSError that names it."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return int(result)


def _syscall(number: int, call: str, *args: object) -> int:
    # Every integer is widened, or the upper half of a register would be left to chance.
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _check(_libc.syscall(ctypes.c_long(number), *wide), call)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(pidfd: int, flags: int) -> None:
    """Enter namespaces of the process; CLONE_NEWPID counts for later children only."""
    _check(_libc.setns(pidfd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            flags,
            data.encode() or None,
        ),
        f"mount {target}",
    )


def umount(target: str, flags: int) -> None:
    _check(_libc.umount2(target.encode(), flags), f"umount2 {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _syscall(_NUMBERS["pivot_root"], "pivot_root", new_root.encode(), put_old.encode())


def open_tree(path: str, flags: int) -> int:
    """A detached copy of the mount at `path`, as a descriptor."""
    return _syscall(_OPEN_TREE, f"open_tree {path}", AT_FDCWD, path.encode(), flags | os.O_CLOEXEC)


def move_mount(tree: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    _syscall(
        _MOVE_MOUNT,
        f"move_mount {target}",
        tree,
        b"",
        AT_FDCWD,
        target.encode(),
        MOVE_MOUNT_F_EMPTY_PATH,
    )


def mount_setattr(tree: int, path: str, flags: int, attributes: int) -> None:
    """Set mount attributes, with AT_RECURSIVE on everything mounted below as well."""
    request = struct.pack("QQQQ", attributes, 0, 0, 0)
    _syscall(_MOUNT_SETATTR, "mount_setattr", tree, path.encode(), flags, request, len(request))


def openat2(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    request = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _syscall(_OPENAT2, "openat2", folder, os.fsencode(path), request, len(request))


def prctl(option: int, value: int, value2: int = 0) -> None:
    _check(_libc.prctl(option, value, value2, 0, 0), f"prctl {option}")


def die_with_parent(parent: int, signal_number: int) -> None:
    """SIGKILL (or another signal) when the parent ends.  Cleared by a change of credentials.

    Raises ProcessLookupError where the parent had ended before the call.
    """
    prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        raise ProcessLookupError(f"parent {parent} has ended")


def capset(mask: int) -> None:
    """Make the permitted and effective sets `mask`, the inheritable one empty."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", low, low, 0, high, high, 0))
    _syscall(_NUMBERS["capset"], "capset", header, data)


def join_new_session_keyring() -> None:
    _syscall(_NUMBERS["keyctl"], "keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)


def seccomp_load(program: bytes) -> None:
    """Load a filter: an array of struct sock_filter, 8 bytes each."""
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _syscall(_NUMBERS["seccomp"], "seccomp", SECCOMP_SET_MODE_FILTER, 0, prog)


def seccomp_action_available(action: int) -> bool:
    try:
        _syscall(
            _NUMBERS["seccomp"], "seccomp", SECCOMP_GET_ACTION_AVAIL, 0, struct.pack("I", action)
        )
    except OSError:
        return False
    return True


def landlock_abi() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    try:
        return _syscall(
            _LANDLOCK_CREATE_RULESET,
            "landlock_create_ruleset",
            None,
            0,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    except OSError:
        return 0


def landlock_create_ruleset(fs: int, net: int, scoped: int, size: int) -> int:
    """A ruleset descriptor.  `size` is that of the struct as the kernel's ABI knows it."""
    attributes = struct.pack("QQQ", fs, net, scoped)[:size]
    return _syscall(
        _LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", attributes, len(attributes), 0
    )


def landlock_allow_beneath(ruleset: int, folder: int, access: int) -> None:
    rule = struct.pack("=Qi", access, folder)
    _syscall(_LANDLOCK_ADD_RULE, "landlock_add_rule", ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_restrict_self(ruleset: int) -> None:
    _syscall(_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)
