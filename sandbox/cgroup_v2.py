"""Control groups v2 alone, as on every current distribution.

The jails live under the service's own group, which systemd or a container runtime has
delegated to it; where that group holds processes of somebody else (a login shell that
started the service, say), under the root of the tree instead, for a group with processes
in it may not hand controllers down.
"""

from __future__ import annotations

import os
import select

from gaoler.sandbox import process
from gaoler.sandbox.cgroup import PERIOD_US, Group, Layout, OomWatch, Usage, counters
from gaoler.sandbox.job import Limits

CONTROLLERS = ("cpu", "memory", "pids")


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
        group.write("v2", "cgroup.subtree_control", _enable(CONTROLLERS))
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
        return OomWatch(group.open("v2", "memory.events", os.O_RDONLY), select.POLLPRI)


def missing_controllers(mount: str) -> list[str]:
    """Those of CONTROLLERS that our own group cannot have."""
    with open(os.path.join(mount, "cgroup.controllers"), encoding="ascii") as file:
        offered = file.read().split()
    return [name for name in CONTROLLERS if name not in offered]


def find_home(mount: str) -> str:
    """The folder for the instance's group: our own if it is ours alone, else the root."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        own = next(line for line in file if line.startswith("0::")).strip()[3:]
    home = os.path.join(mount, own.lstrip("/")).rstrip("/")
    if home != mount and _make_room(home):
        return home
    _hand_down(mount)
    return mount


def _make_room(home: str) -> bool:
    """Move ourselves into a leaf and hand the controllers down; False where others live here."""
    leaf = os.path.join(home, "gaoler-service")
    try:
        os.makedirs(leaf, exist_ok=True)
        for pid in _processes(home):
            if not _is_ours(pid):
                return False
        for pid in _processes(home):
            process.write_file(os.path.join(leaf, "cgroup.procs"), str(pid))
        _hand_down(home)
    except OSError:
        return False
    return True


def _processes(folder: str) -> list[int]:
    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
        return [int(line) for line in file]


def _is_ours(pid: int) -> bool:
    """True for this process and its parent, which is `gaoler serve` and started nothing else."""
    return pid in (os.getpid(), os.getppid())


def _hand_down(folder: str) -> None:
    process.write_file(os.path.join(folder, "cgroup.subtree_control"), _enable(CONTROLLERS))


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
