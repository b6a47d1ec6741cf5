"""The layers of isolation, each looked at before anything is run.

A layer is active, degraded (with the reason) or missing (with what repairs it).  Only the
layers in `DEGRADABLE` may be degraded; a service does not start while one is missing.
Kernel features are tried, in a child that is thrown away, not guessed from a version.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass

from gaoler.sandbox import (
    hierarchy,
    landlock,
    mounts,
    namespaces,
    paths,
    process,
    seccomp,
    syscalls,
)

ACTIVE = "active"
DEGRADED = "degraded"
MISSING = "missing"

DEGRADABLE = frozenset({"oom protection", "swap limit", "socket memory", "landlock scopes"})

_LEAST_KERNEL = (6, 1)
_LIMIT_S = 10.0  # of each attempt


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's state; `why` and `repair` are for people."""

    name: str
    state: str
    why: str = ""
    repair: str = ""

    def __str__(self) -> str:
        return self.state + (f": {self.why}" if self.why else "")


def survey() -> list[Layer]:
    """Every layer of this host, in the order in which they are built.  Needs root."""
    return [
        _root(),
        _kernel(),
        *_control_groups(),
        *(_namespace(name, flag) for name, flag in _NAMESPACES.items()),
        _tried("mounts", _try_mounts, "a kernel with mount_setattr (5.12) and CAP_SYS_ADMIN"),
        _tried("overlay file system", _try_overlay, "modprobe overlay"),
        _tried("path resolution", _try_openat2, "a kernel with openat2 (5.6)"),
        *_landlock(),
        _seccomp(),
        _oom_protection(),
    ]


def stops_start(layers: list[Layer]) -> list[Layer]:
    """Those that a service must not start without."""
    return [layer for layer in layers if layer.state == MISSING]


_NAMESPACES = {
    "mount namespace": syscalls.CLONE_NEWNS,
    "pid namespace": syscalls.CLONE_NEWPID,
    "network namespace": syscalls.CLONE_NEWNET,
    "ipc namespace": syscalls.CLONE_NEWIPC,
    "uts namespace": syscalls.CLONE_NEWUTS,
    "cgroup namespace": syscalls.CLONE_NEWCGROUP,
    "user namespace": syscalls.CLONE_NEWUSER,
}
_NAMESPACE_REPAIRS = {
    "user namespace": "sysctl -w user.max_user_namespaces=65536 kernel.unprivileged_userns_clone=1"
}


def _root() -> Layer:
    if os.geteuid() == 0:
        return Layer("privileges", ACTIVE)
    return Layer("privileges", MISSING, "not root", "start it with sudo")


def _kernel() -> Layer:
    release = os.uname().release
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if version >= _LEAST_KERNEL:
        return Layer("kernel", ACTIVE)
    return Layer("kernel", MISSING, f"{release} is older than 6.1", "install a newer kernel")


def _control_groups() -> list[Layer]:
    try:
        layout = hierarchy.look()
    except hierarchy.Unsupported as error:
        repair = "boot with systemd.unified_cgroup_hierarchy=1"
        return [Layer("control groups", MISSING, str(error), repair)]
    return [
        Layer(f"control groups ({layout.name})", ACTIVE),
        _limited(
            "swap limit",
            layout.swap_is_limited,
            "the kernel does not account swap, a task may use it beyond its memory",
            "swapoff -a, or boot with swapaccount=1",
        ),
        _limited(
            "socket memory",
            layout.sockets_are_limited,
            "this v1 kernel does not count socket buffers: many sockets can fill the host's share",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
    ]


def _limited(name: str, limited: bool, why: str, repair: str) -> Layer:
    return Layer(name, ACTIVE) if limited else Layer(name, DEGRADED, why, repair)


def _namespace(name: str, flag: int) -> Layer:
    repair = _NAMESPACE_REPAIRS.get(name, "a kernel built with it, and CAP_SYS_ADMIN")
    if flag == syscalls.CLONE_NEWUSER:
        return _tried(name, _try_user_namespace, repair)
    return _tried(name, lambda: syscalls.unshare(flag), repair)


def _landlock() -> list[Layer]:
    abi = syscalls.landlock_abi()
    if abi < landlock.LEAST_ABI:
        repair = "boot with lsm=landlock,… and a kernel of 5.19 or newer"
        return [Layer("landlock", MISSING, f"the kernel offers version {abi}, not 2", repair)]
    layers = [Layer(f"landlock (version {abi})", ACTIVE)]
    if abi >= landlock.SCOPES_ABI:
        return [*layers, Layer("landlock scopes", ACTIVE)]
    why = f"version {abi} cannot confine abstract sockets and signals; namespaces do"
    return [*layers, Layer("landlock scopes", DEGRADED, why, "a kernel of 6.12 or newer")]


def _seccomp() -> Layer:
    if not syscalls.seccomp_action_available(seccomp.KILL_PROCESS):
        repair = "a kernel built with CONFIG_SECCOMP_FILTER"
        return Layer("seccomp", MISSING, "no filters that kill a process", repair)
    repair = "see what the kernel log says; a kernel that hangs here has to be started again"
    return _tried("seccomp", _try_seccomp, repair)


def _oom_protection() -> Layer:
    """Whether our own processes can be kept from the OOM killer."""
    if _succeeds_in_child(lambda: process.write_file("/proc/self/oom_score_adj", "-500")) == 0:
        return Layer("oom protection", ACTIVE)
    why = "no CAP_SYS_RESOURCE: a host out of memory may kill our processes before a task"
    return Layer("oom protection", DEGRADED, why, "grant CAP_SYS_RESOURCE to the service")


def _tried(name: str, attempt: Callable[[], object], repair: str) -> Layer:
    number = _succeeds_in_child(attempt)
    if number == 0:
        return Layer(name, ACTIVE)
    return Layer(name, MISSING, os.strerror(number), repair)


def _succeeds_in_child(attempt: Callable[[], object]) -> int:
    """0, or the errno that the attempt ended with, in a child of its own.

    ETIMEDOUT where it does not end: kernels have been seen to hang in a call for good.
    """
    pid = os.fork()
    if pid == 0:
        number = process.BROKEN
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _hold_nothing()
            attempt()
            number = 0
        except OSError as error:
            number = error.errno or process.BROKEN
        finally:
            os._exit(number)
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], _LIMIT_S)[0]:
            os.kill(pid, signal.SIGKILL)  # it may not even die of this
            return errno.ETIMEDOUT
    finally:
        os.close(pidfd)
    status = process.wait_for(pid)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else process.BROKEN


def _hold_nothing() -> None:
    """Close all that our parent has open: a child that hangs must not keep a pipe of it."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    process.close_all_but(())


def _try_user_namespace() -> None:
    uid = 4_000_000  # nobody's
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    namespaces.enter_user_namespace(uid, uid)


def _try_mounts() -> None:
    _own_mounts()
    tree = syscalls.open_tree("/usr", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    flags = syscalls.AT_EMPTY_PATH | syscalls.AT_RECURSIVE
    syscalls.mount_setattr(tree, "", flags, syscalls.MOUNT_ATTR_RDONLY)
    syscalls.mount("gaoler-try", "/mnt", "tmpfs", 0, "size=4k")
    os.mknod("/mnt/null", 0o020666, os.makedev(1, 3))
    os.close(os.open("/mnt/null", os.O_RDWR))


def _try_overlay() -> None:
    _own_mounts()
    syscalls.mount("gaoler-try", "/mnt", "tmpfs", 0, "size=4k")
    os.mkdir("/mnt/empty")
    os.mkdir("/mnt/usr")
    mounts.mount_overlay("/usr", "/mnt/empty", "/mnt/usr")


def _try_seccomp() -> None:
    programs = seccomp.compile_all()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.seccomp_load(programs.parked)
    for program in programs.final["native_v1"]:
        syscalls.seccomp_load(program)


def _own_mounts() -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _try_openat2() -> None:
    root = os.open("/", os.O_DIRECTORY | os.O_RDONLY)
    # Not /usr, say: it may be a file system of its own, and no mount is crossed.
    os.close(paths.open_beneath(root, ".", os.O_DIRECTORY | os.O_RDONLY))
