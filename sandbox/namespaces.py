"""Namespaces: which are made where, and the user namespace's maps.

The warden stands in mount, UTS, IPC and network namespaces of its own, so that everything
it forks begins with no interface, no host mounts to share and no shared memory.  A task
gets its own of each kind again, and PID, user and cgroup namespaces; the time namespace
is the host's, which is why the clock cannot be set but can be read.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable

from gaoler.sandbox import process, syscalls

HOSTNAME = "gaoler"
INSIDE_UID = 1000
INSIDE_GID = 1000

WARDEN = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWNET
)
TASK = WARDEN

_TCP_IN_USE = re.compile(rb"^TCP6?: inuse (\d+)", re.MULTILINE)
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_loopback() -> None:
    """Bring up `lo` in this network namespace; it is the only interface there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


# What the kernel keeps for connections that nobody has accepted yet, and of those that have
# ended, is counted to no group: few of each.
# A buffer begins at a page and grows where it is read.
_NETWORK_LIMITS = {
    "core/somaxconn": "128",
    "ipv4/tcp_max_tw_buckets": "1024",
    "ipv4/tcp_rmem": "4096 4096 6291456",
}


def limit_network() -> None:
    """Bound this network namespace's own tables.  A fresh /proc is mounted, and not masked yet."""
    for name, value in _NETWORK_LIMITS.items():
        process.write_file(f"/proc/sys/net/{name}", value)


def open_counts() -> list[int]:
    """Descriptors that tell, from anywhere, how many sockets this network namespace has."""
    names = ("sockstat", "sockstat6") if os.path.exists("/proc/net/sockstat6") else ("sockstat",)
    return [os.open(f"/proc/net/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]


def tcp_sockets(counts: Iterable[int]) -> int:
    """TCP sockets in use, those among them that nobody has accepted yet."""
    found = (_TCP_IN_USE.search(os.pread(descriptor, 4096, 0)) for descriptor in counts)
    return sum(int(match[1]) for match in found if match)


def enter_user_namespace(uid: int, gid: int) -> None:
    """Become uid 1000 of a new user namespace that maps nothing else.

    The caller is already `uid` outside, and dumpable, or its map files would be root's.
    `setgroups` must be denied before an unprivileged process may write its gid map.
    """
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    process.write_file("/proc/self/setgroups", "deny")
    process.write_file("/proc/self/uid_map", f"{INSIDE_UID} {uid} 1")
    process.write_file("/proc/self/gid_map", f"{INSIDE_GID} {gid} 1")
