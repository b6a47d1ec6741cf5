"""Each layer of isolation, switched off: one function a layer, named in LAYERS.

What is taken out is the layer's own code, and only that.  Two layers lean on each other in
the kernel; there the note beside the function says what stands in for the missing part.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from typing import Any

from gaoler.sandbox import (
    capabilities,
    cgroup,
    leases,
    mounts,
    namespaces,
    process,
    rlimits,
    seccomp,
    syscalls,
    task,
)


def _nothing(*_: object) -> None:
    """Stands where a layer was."""


def _replace(owner: Any, name: str, with_what: Any) -> None:
    assert hasattr(owner, name), name
    setattr(owner, name, with_what)


# --- users --------------------------------------------------------------------------------


def leased_uid() -> None:
    """Every jail gets the first UID of the range."""
    _replace(leases.UidLeases, "take", lambda self: self._all.start)
    _replace(leases.UidLeases, "give_back", _nothing)


def user_namespace() -> None:
    """Without it the bounding set cannot be emptied any more: nobody has CAP_SETPCAP."""
    _replace(namespaces, "enter_user_namespace", _nothing)
    emptied = capabilities.drop_bounding

    def drop_what_may_be(kept: tuple[int, ...] = ()) -> None:
        try:
            emptied(kept)
        except PermissionError:
            pass

    _replace(capabilities, "drop_bounding", drop_what_may_be)


def capability_sets() -> None:
    """All sets are full, the ambient one too, so that exec keeps them."""
    _replace(task, "capabilities", _Full)


class _Full:
    """Instead of `capabilities`, for the task alone."""

    @staticmethod
    def drop_all() -> None:
        everything = (1 << 41) - 1
        low, high = everything & 0xFFFFFFFF, everything >> 32
        number = syscalls._NUMBERS["capset"]
        header = struct.pack("Ii", 0x20080522, 0)
        syscalls._syscall(number, "capset", header, struct.pack("6I", *[low] * 3, *[high] * 3))
        for capability in range(41):
            syscalls.prctl(syscalls.PR_CAP_AMBIENT, 2, capability)  # PR_CAP_AMBIENT_RAISE


def no_new_privileges() -> None:
    """The kernel lets a process without it load filters only while it has CAP_SYS_ADMIN, so
    the capabilities are dropped after the last filter instead of before the first."""
    prctl = syscalls.prctl
    _replace(
        syscalls,
        "prctl",
        lambda option, *values: (
            None if option == syscalls.PR_SET_NO_NEW_PRIVS else prctl(option, *values)
        ),
    )
    _replace(task, "capabilities", _Later)
    execute = task._exec

    def drop_and_execute(*arguments: Any) -> None:
        capabilities.drop_all()
        execute(*arguments)

    _replace(task, "_exec", drop_and_execute)


class _Later:
    """Instead of `capabilities`, for the task alone."""

    drop_all = staticmethod(_nothing)


def session_keyring() -> None:
    """keyctl is killed by seccomp, so its profile has to go as well to see this one."""
    _replace(syscalls, "join_new_session_keyring", _nothing)
    seccomp_profile()


# --- mounts -------------------------------------------------------------------------------


def detached_root() -> None:
    """The host's root stays mounted, at /run."""
    pivot = syscalls.pivot_root
    _replace(syscalls, "pivot_root", lambda new_root, _: pivot(new_root, "run"))
    _replace(syscalls, "umount", _nothing)


def mount_attributes() -> None:
    """No mount is read-only, nosuid, nodev or noexec."""
    mount = syscalls.mount
    attributes = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    _replace(
        syscalls,
        "mount",
        lambda source, target, kind, flags, data="": mount(
            source, target, kind, flags & ~attributes, data
        ),
    )
    _replace(syscalls, "mount_setattr", _nothing)


def overlays() -> None:
    """The host's own folders and the template's, bound read-only."""

    def bind(folder: str, _: str, target: str, flags: int = syscalls.MS_NODEV) -> None:
        syscalls.mount(folder, target, None, syscalls.MS_BIND)
        attributes = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
        if flags & syscalls.MS_NODEV:
            attributes |= syscalls.MOUNT_ATTR_NODEV
        syscalls.mount_setattr(syscalls.AT_FDCWD, target, 0, attributes)

    _replace(mounts, "mount_overlay", bind)


def sized_tmpfs() -> None:
    """/box, /tmp and /dev/shm take what memory there is."""
    mount = syscalls.mount
    _replace(
        syscalls,
        "mount",
        lambda source, target, kind, flags, data="": mount(
            source, target, kind, flags, re.sub(r"(size|nr_inodes)=\w+,?", "", data)
        ),
    )


def proc_masks() -> None:
    """All of /proc, and no hidepid."""
    _replace(mounts, "mask_proc", _nothing)
    mount = syscalls.mount
    _replace(
        syscalls,
        "mount",
        lambda source, target, kind, flags, data="": mount(
            source, target, kind, flags, "" if kind == "proc" else data
        ),
    )


def landlock() -> None:
    _replace(syscalls, "landlock_restrict_self", _nothing)


# --- namespaces ---------------------------------------------------------------------------


def _stay_in(flag: int) -> None:
    """Tasks share the warden's namespace of this kind, which is not the host's either."""
    namespaces.TASK &= ~flag


def network_namespace() -> None:
    _stay_in(syscalls.CLONE_NEWNET)


def network_namespaces_of_task_and_warden() -> None:
    """Tasks stand in the host's network."""
    network_namespace()
    namespaces.WARDEN &= ~syscalls.CLONE_NEWNET


def ipc_namespace() -> None:
    _stay_in(syscalls.CLONE_NEWIPC)


def uts_namespace() -> None:
    _stay_in(syscalls.CLONE_NEWUTS)


def _do_not_unshare(flag: int) -> None:
    unshare, setns = syscalls.unshare, syscalls.setns
    _replace(syscalls, "unshare", lambda flags: None if flags == flag else unshare(flags))
    _replace(syscalls, "setns", lambda pidfd, flags: None if flags == flag else setns(pidfd, flags))


def pid_namespace() -> None:
    _do_not_unshare(syscalls.CLONE_NEWPID)


def cgroup_namespace() -> None:
    _do_not_unshare(syscalls.CLONE_NEWCGROUP)


# --- limits -------------------------------------------------------------------------------


def _loosen(**limits: int) -> None:
    """Give each task's group these limits instead of its own."""

    def wrap(limit_task: Callable[..., None]) -> Callable[..., None]:
        def limit(layout: Any, group: Any, wanted: Any, cpus: float) -> None:
            loose = {name: value for name, value in limits.items() if hasattr(wanted, name)}
            cpus = limits.get("cpus", cpus)
            limit_task(layout, group, dataclasses.replace(wanted, **loose), cpus)

        return limit

    for layout in cgroup.Layout.__subclasses__():
        layout.limit_task = wrap(layout.limit_task)  # type: ignore[method-assign]


def memory_group() -> None:
    """The request's own limit stays."""
    _loosen(memory_bytes=1 << 40)


def pids_group() -> None:
    """The request's own limit stays."""
    _loosen(pids=1 << 20)


def cpu_group() -> None:
    _loosen(cpus=0)


def resource_limits() -> None:
    _replace(rlimits, "apply", _nothing)


# --- system calls -------------------------------------------------------------------------


def _skip_programs(skip: Callable[[seccomp.Programs], set[bytes]]) -> None:
    compile_all, load = seccomp.compile_all, syscalls.seccomp_load
    skipped: set[bytes] = set()

    def compile_and_note() -> seccomp.Programs:
        programs = compile_all()
        skipped.update(skip(programs))
        return programs

    _replace(seccomp, "compile_all", compile_and_note)
    _replace(
        syscalls, "seccomp_load", lambda program: None if program in skipped else load(program)
    )


def seccomp_profile() -> None:
    """`standard_v1`'s allow list; the final filter stays."""
    _skip_programs(lambda programs: {programs.parked})


def final_filter() -> None:
    _skip_programs(lambda programs: {programs.final["standard_v1"][-1]})


def native_filter() -> None:
    """What native_v1 adds to standard_v1."""
    _skip_programs(lambda programs: {programs.final["native_v1"][0]})


# --- our own processes --------------------------------------------------------------------


def closing_of_descriptors() -> None:
    """What is inherited stays open until exec closes it."""
    _replace(process, "close_all_but", _nothing)


# Every layer that can be switched off, as docs/security.md names it.
LAYERS: dict[str, Callable[[], None]] = {
    "leased UID": leased_uid,
    "user namespace": user_namespace,
    "empty capability sets": capability_sets,
    "no_new_privs": no_new_privileges,
    "session keyring, and the seccomp allow list": session_keyring,
    "detached host root": detached_root,
    "read-only, nosuid, nodev mounts": mount_attributes,
    "overlays": overlays,
    "sizes of /box, /tmp, /dev/shm": sized_tmpfs,
    "hidepid and masks of /proc": proc_masks,
    "PID namespace": pid_namespace,
    "network namespace of each task": network_namespace,
    "network namespaces of task and warden": network_namespaces_of_task_and_warden,
    "IPC namespace of each task": ipc_namespace,
    "UTS namespace of each task": uts_namespace,
    "cgroup namespace": cgroup_namespace,
    "memory group of each task": memory_group,
    "pids group of each task": pids_group,
    "cpu group of each task": cpu_group,
    "Landlock": landlock,
    "seccomp allow list": seccomp_profile,
    "final seccomp filter": final_filter,
    "seccomp of native_v1": native_filter,
    "rlimits": resource_limits,
    "closing of descriptors": closing_of_descriptors,
}
