"""Control groups v1, and the hybrid that has v2's tree beside it.

The controllers are v1's; the v2 tree, which has none there, serves for killing a group in
one write, for its `populated` event and for exact CPU times.  The memory controller says
by an eventfd that it ran out, and kills one process, not the group: the supervisor kills
the rest.

cgroup-utils finds where each controller is mounted.  Its own `rmdir` first moves the
processes that are left into the parent, which would set a task free: it is never called.
"""

from __future__ import annotations

import os
import select
import warnings

from gaoler.sandbox.cgroup import PERIOD_US, Group, Layout, OomWatch, Usage, counters
from gaoler.sandbox.job import Limits

CONTROLLERS = ("memory", "pids", "cpu")
_LARGEST_CHARGE = 256 << 10
# What the buffers of a task's TCP and UDP sockets may hold, beside its memory.
SOCKET_BYTES = 16 << 20


class HybridLayout(Layout):
    """v1 controllers, v2 for the tree."""

    name = "hybrid"

    def __init__(self, mounts: dict[str, str]) -> None:
        self._mounts = mounts  # "v2" and each of CONTROLLERS to its mount point
        self.swap_is_limited = os.path.exists(
            os.path.join(mounts["memory"], "memory.memsw.limit_in_bytes")
        )
        self.sockets_are_limited = os.path.exists(
            os.path.join(mounts["memory"], "memory.kmem.tcp.limit_in_bytes")
        )

    def open_base(self, instance: str) -> Group:
        return Group.at(self._paths(instance), make=True)

    def remove_base(self, instance: str) -> None:
        for path in self._paths(instance).values():
            if os.path.isdir(path):
                os.rmdir(path)

    def _paths(self, instance: str) -> dict[str, str]:
        return {name: os.path.join(mount, instance) for name, mount in self._mounts.items()}

    def limit_jail(self, group: Group, memory_bytes: int, pids: int) -> None:
        self._limit_memory(group, memory_bytes)
        group.write("pids", "pids.max", pids)

    def limit_task(self, group: Group, limits: Limits, cpus: float) -> None:
        self._limit_memory(group, limits.memory_bytes)
        if self.sockets_are_limited:
            # Counted apart, and only once there is a limit.
            group.write("memory", "memory.kmem.tcp.limit_in_bytes", SOCKET_BYTES)
        group.write("pids", "pids.max", limits.pids)
        if cpus:
            group.write("cpu", "cpu.cfs_period_us", PERIOD_US)
            group.write("cpu", "cpu.cfs_quota_us", int(PERIOD_US * cpus))

    def _limit_memory(self, group: Group, memory_bytes: int) -> None:
        # The limit with swap may not be below the one without: this order when lowering.
        group.write("memory", "memory.limit_in_bytes", memory_bytes)
        if self.swap_is_limited:
            group.write("memory", "memory.memsw.limit_in_bytes", memory_bytes)

    def usage(self, group: Group) -> Usage:
        cpu = counters(group.read("v2", "cpu.stat"))
        peak = int(group.read("memory", "memory.max_usage_in_bytes"))
        return Usage(
            cpu_user_ns=cpu["user_usec"] * 1000,
            cpu_system_ns=cpu["system_usec"] * 1000,
            memory_peak_bytes=peak,
            pids_peak=_pids_peak(group),
            pids_limit_hits=counters(group.read("pids", "pids.events")).get("max", 0),
            oom_kills=counters(group.read("memory", "memory.oom_control")).get("oom_kill", 0),
            oom_by_own_limit=_met_its_limit(group, peak),
        )

    def watch_oom(self, group: Group) -> OomWatch:
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        control = group.open("memory", "memory.oom_control", os.O_RDONLY)
        group.write("memory", "cgroup.event_control", f"{event} {control}")
        return OomWatch(event, select.POLLIN, (control,))


def find_mounts() -> dict[str, str]:
    """Where the v1 controllers and the v2 tree are mounted; empty where v1 is not in use."""
    with warnings.catch_warnings():
        # Its source has escapes that newer interpreters warn of.
        warnings.simplefilter("ignore")
        from cgutils import cgroup as cgutils_cgroup  # type: ignore[import-untyped]

        paths = dict(cgutils_cgroup.SubsystemStatus().paths)
    return {name: paths[name] for name in CONTROLLERS if name in paths}


def _met_its_limit(group: Group, peak: int) -> bool:
    """True where the group's own limit, not one above it, left no room.

    v1 has no counter for it that current kernels still count, but when the OOM killer is
    called because of a limit, use stands at that limit to within one charge.
    """
    return peak + _LARGEST_CHARGE >= int(group.read("memory", "memory.limit_in_bytes"))


def _pids_peak(group: Group) -> int:
    try:
        return int(group.read("pids", "pids.peak"))
    except FileNotFoundError:  # kernels before 6.1 as v1, at the least
        return int(group.read("pids", "pids.current"))
