"""Control groups v2 alone, as on every current distribution.

A group that hands controllers down may not hold processes, the root of the tree excepted.
So the instance's group is made in one of three homes:

    <own>/gaoler-…    the service's own group, which systemd delegated to it: `gaoler serve`
                      and the warden move into the leaf <own>/gaoler-service first
    <root>/gaoler-…   where the own group has processes of somebody else, such as the login
                      shell that started the service
    <root>/gaoler-…   in a container, whose root of the tree is a group like any other of
                      the host's: all of the container's processes move into the leaf there

A warden that is started again finds itself in that leaf and has the same home as before.
"""

from __future__ import annotations

import errno
import os
import select

from gaoler.sandbox import process
from gaoler.sandbox.cgroup import PERIOD_US, Group, Layout, OomWatch, Usage, counters
from gaoler.sandbox.job import Limits

CONTROLLERS = ("cpu", "memory", "pids")
_LEAF = "gaoler-service"


class UnifiedLayout(Layout):
    """A single tree."""

    name = "v2"

    def __init__(self, mount: str) -> None:
        self._mount = mount
        self._home = mount  # the folder under which the instance's group is made
        self.swap_is_limited = os.path.exists("/proc/swaps")

    def settle(self) -> None:
        """Find the home, and hand the controllers down to it.  Raises OSError."""
        self._home = find_home(self._mount)

    def open_base(self, instance: str) -> Group:
        base = Group.at({"v2": os.path.join(self._home, instance)}, make=True)
        base.write("v2", "cgroup.subtree_control", _enable(CONTROLLERS))
        return base

    def remove_base(self, instance: str) -> None:
        path = os.path.join(self._home, instance)
        if os.path.isdir(path):
            os.rmdir(path)

    def make_jail(self, base: Group, name: str) -> Group:
        group = super().make_jail(base, name)
        try:
            group.write("v2", "cgroup.subtree_control", _enable(CONTROLLERS))
        except BaseException:
            group.close()
            raise
        return group

    def limit_jail(self, group: Group, memory_bytes: int, pids: int) -> None:
        self._limit_memory(group, memory_bytes)
        group.write("v2", "pids.max", pids)

    def limit_task(self, group: Group, limits: Limits, cpus: float) -> None:
        self._limit_memory(group, limits.memory_bytes)
        group.write("v2", "memory.oom.group", 1)
        group.write("v2", "pids.max", limits.pids)
        if cpus:
            group.write("v2", "cpu.max", f"{int(PERIOD_US * cpus)} {PERIOD_US}")

    def _limit_memory(self, group: Group, memory_bytes: int) -> None:
        group.write("v2", "memory.max", memory_bytes)
        try:
            group.write("v2", "memory.swap.max", 0)
        except FileNotFoundError:  # a kernel without swap accounting
            self.swap_is_limited = False

    def usage(self, group: Group) -> Usage:
        cpu = counters(group.read("v2", "cpu.stat"))
        memory = counters(group.read("v2", "memory.events.local"))
        return Usage(
            cpu_user_ns=cpu["user_usec"] * 1000,
            cpu_system_ns=cpu["system_usec"] * 1000,
            memory_peak_bytes=_first(group, "memory.peak", "memory.current"),
            pids_peak=_first(group, "pids.peak", "pids.current"),
            pids_limit_hits=counters(group.read("v2", "pids.events")).get("max", 0),
            oom_kills=memory.get("oom_kill", 0),
            # `oom` is counted on the group whose limit was met, and on no other here.
            oom_by_own_limit=memory.get("oom", 0) > 0,
        )

    def watch_oom(self, group: Group) -> OomWatch:
        # The kernel itself kills the whole task (memory.oom.group), so nothing has to be
        # heard.  memory.events would also wake us each time that the limit is met and pages
        # are found, a hundred times a second for a task that reads large files.
        return OomWatch(os.eventfd(0, os.EFD_CLOEXEC), select.POLLIN)


def missing_controllers(folder: str) -> list[str]:
    """Those of CONTROLLERS that a group cannot have, nor what is below it."""
    with open(os.path.join(folder, "cgroup.controllers"), encoding="ascii") as file:
        offered = file.read().split()
    return [name for name in CONTROLLERS if name not in offered]


def find_home(mount: str) -> str:
    """The folder for the instance's group, its controllers handed down.  Raises OSError."""
    home = _choose_home(mount, _own_group())
    if not _may_hold_processes(home):
        _make_room(home)
    process.write_file(os.path.join(home, "cgroup.subtree_control"), _enable(CONTROLLERS))
    return home


def _choose_home(mount: str, own: str) -> str:
    """Which of the three it is, for a process in the group `own`.  Changes nothing."""
    folder = os.path.join(mount, own.lstrip("/")).rstrip("/")
    if os.path.basename(folder) == _LEAF:
        return os.path.dirname(folder)
    try:
        delegated = all(map(_is_ours, _processes(folder))) and not missing_controllers(folder)
    except FileNotFoundError:  # out of sight, as in a container with the host's namespace
        delegated = False
    return folder if delegated else mount


def _own_group() -> str:
    """The path of this process's group from the root that it sees."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        return next(line for line in file if line.startswith("0::")).rstrip("\n")[3:]


def _may_hold_processes(folder: str) -> bool:
    """True for the root of the host's tree, the one group that has no type."""
    return not os.path.exists(os.path.join(folder, "cgroup.type"))


def _make_room(home: str) -> None:
    """Move every process of a group into the leaf below it."""
    leaf = os.path.join(home, _LEAF)
    while pids := _processes(home):
        if 0 in pids:
            raise OSError(errno.EBUSY, "has processes of another PID namespace", home)
        os.makedirs(leaf, exist_ok=True)
        for pid in pids:
            try:
                process.write_file(os.path.join(leaf, "cgroup.procs"), str(pid))
            except ProcessLookupError:
                continue  # it has ended meanwhile


def _processes(folder: str) -> list[int]:
    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
        return [int(line) for line in file]


def _is_ours(pid: int) -> bool:
    """True for this process and its parent, which is `gaoler serve` and started nothing else."""
    return pid in (os.getpid(), os.getppid())


def _enable(controllers: tuple[str, ...]) -> str:
    return " ".join(f"+{name}" for name in controllers)


def _first(group: Group, *files: str) -> int:
    """The first of the files that this kernel has."""
    for file in files[:-1]:
        try:
            return int(group.read("v2", file))
        except FileNotFoundError:
            continue
    return int(group.read("v2", files[-1]))
