"""Control groups: one interface, two layouts, chosen by looking at the host.

A request has a group, with the leaf `self` for our own processes and a leaf for each
task:

    <base>/<jail>/self        jailer, supervisors, inits
    <base>/<jail>/task-0      the first task's processes
    …

On a v1 or hybrid host a group is one folder in each controller's hierarchy; on a pure v2
host it is a single folder.  A `Group` holds open descriptors of its folders, so it can be
used after the jailer has pivoted away from where they can be seen; children are made and
files opened relative to them.

Nothing here moves a process but `join`, and a process joins only by itself, before it
runs anything of anybody else's, so there is no moment in which a task is outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gaoler.sandbox.job import Limits

SELF = "self"
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What a task's group used so far."""

    cpu_user_ns: int
    cpu_system_ns: int
    memory_peak_bytes: int
    pids_peak: int
    pids_limit_hits: int
    oom_kills: int
    oom_by_own_limit: bool

    @property
    def cpu_ns(self) -> int:
        return self.cpu_user_ns + self.cpu_system_ns


class Group:
    """One group: a folder in each hierarchy, held open.  Closed by `close`."""

    def __init__(self, folders: dict[str, int]) -> None:
        self.folders = folders  # hierarchy name ("v2" or a v1 controller) to descriptor

    @classmethod
    def at(cls, paths: dict[str, str], make: bool = False) -> Group:
        """Open (or make) the folders at the given host paths, one for each hierarchy."""
        folders: dict[str, int] = {}
        try:
            for name, path in paths.items():
                if make:
                    _mkdir(path, None)
                folders[name] = os.open(path, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            Group(folders).close()
            raise
        return cls(folders)

    def child(self, name: str, make: bool = False) -> Group:
        """A folder below this one in each hierarchy."""
        folders: dict[str, int] = {}
        try:
            for hierarchy, folder in self.folders.items():
                if make:
                    _mkdir(name, folder)
                folders[hierarchy] = os.open(
                    name, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder
                )
        except BaseException:
            Group(folders).close()
            raise
        return Group(folders)

    def children(self) -> set[str]:
        """Names of the groups below, in any hierarchy."""
        names: set[str] = set()
        for folder in self.folders.values():
            with os.scandir(folder) as entries:
                names.update(e.name for e in entries if e.is_dir(follow_symlinks=False))
        return names

    def processes(self) -> set[int]:
        """The processes of this group itself, in the v2 tree, which every layout has."""
        return {int(line) for line in self.read("v2", "cgroup.procs").split()}

    def remove_child(self, name: str) -> None:
        """Remove an empty child from every hierarchy.  Raises OSError (EBUSY: not empty)."""
        for folder in self.folders.values():
            try:
                os.rmdir(name, dir_fd=folder)
            except FileNotFoundError:
                continue

    def write(self, hierarchy: str, file: str, value: object) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.folders[hierarchy])
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def read(self, hierarchy: str, file: str) -> str:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folders[hierarchy])
        try:
            return os.read(descriptor, 65536).decode()
        finally:
            os.close(descriptor)

    def open(self, hierarchy: str, file: str, flags: int) -> int:
        return os.open(file, flags | os.O_CLOEXEC, dir_fd=self.folders[hierarchy])

    def join(self) -> None:
        """Move the calling process in.  Waits for the kernel, so never on a hot path."""
        for hierarchy in self.folders:
            self.write(hierarchy, "cgroup.procs", 0)

    def close(self) -> None:
        for descriptor in self.folders.values():
            os.close(descriptor)
        self.folders = {}


class Layout(ABC):
    """How this host's control groups are used."""

    name: str
    swap_is_limited: bool
    sockets_are_limited: bool = True

    @abstractmethod
    def open_base(self, instance: str) -> Group:
        """The group that holds this instance's jails, made where it is missing."""

    @abstractmethod
    def remove_base(self, instance: str) -> None:
        """Remove it; it must be empty."""

    @abstractmethod
    def limit_jail(self, group: Group, memory_bytes: int, pids: int) -> None:
        """Bound a whole request."""

    @abstractmethod
    def limit_task(self, group: Group, limits: Limits, cpus: float) -> None:
        """Bound one task."""

    @abstractmethod
    def usage(self, group: Group) -> Usage:
        """What a task's group used."""

    @abstractmethod
    def watch_oom(self, group: Group) -> OomWatch:
        """Something to poll that becomes ready when the OOM killer strikes in the group."""

    def make_jail(self, base: Group, name: str) -> Group:
        """A request's group with its leaf for our own processes."""
        group = base.child(name, make=True)
        try:
            group.child(SELF, make=True).close()
        except BaseException:
            group.close()
            raise
        return group

    def make_task(self, jail: Group, name: str) -> Group:
        return jail.child(name, make=True)

    def kill(self, group: Group) -> None:
        """SIGKILL every process of the group and of those below it; none where it is gone."""
        try:
            group.write("v2", "cgroup.kill", 1)
        except OSError as error:
            if not is_gone(error):
                raise

    def kill_each(self, group: Group) -> None:
        """The same, one by one.

        Of a process whose first thread has ended and others have not, `cgroup.kill` reaches
        none (seen on 6.18).
        """
        try:
            for name in ("", *group.children()):
                below = group.child(name) if name else group
                try:
                    _kill_members(below)
                finally:
                    if name:
                        below.close()
        except OSError as error:
            if not is_gone(error):
                raise

    def populated(self, group: Group) -> bool:
        """True while a living process is in the group or below it."""
        try:
            return "populated 1" in group.read("v2", "cgroup.events")
        except OSError as error:
            if is_gone(error):
                return False
            raise

    def events(self, group: Group) -> int | None:
        """A descriptor that polls POLLPRI when `populated` changes, where there is one."""
        return group.open("v2", "cgroup.events", os.O_RDONLY)


@dataclass(slots=True)
class OomWatch:
    """`descriptor` polls `mask` at each out-of-memory event; `drain` makes it quiet again."""

    descriptor: int
    mask: int
    holds: tuple[int, ...] = ()

    def drain(self) -> None:
        try:
            if self.holds:
                os.read(self.descriptor, 8)
            else:
                os.pread(self.descriptor, 4096, 0)
        except BlockingIOError:
            pass

    def close(self) -> None:
        for descriptor in {self.descriptor, *self.holds}:
            os.close(descriptor)


_KILLED_AT_A_TIME = 64


def _kill_members(group: Group) -> None:
    """SIGKILL the group's own processes; never one that has only got the number of one."""
    pids = sorted(group.processes())
    for start in range(0, len(pids), _KILLED_AT_A_TIME):
        pidfds = {}
        try:
            for pid in pids[start : start + _KILLED_AT_A_TIME]:
                with contextlib.suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
            # Who still is in the group had its number before, so the pidfd is its own.
            for pid in group.processes() & pidfds.keys():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)
        finally:
            for pidfd in pidfds.values():
                os.close(pidfd)


def remove_jail(base: Group, name: str) -> None:
    """Remove a request's groups, leaves first.  Raises OSError (EBUSY: not empty yet)."""
    try:
        jail = base.child(name)
    except FileNotFoundError:
        jail = None
    if jail is not None:
        try:
            for leaf in jail.children():
                jail.remove_child(leaf)
        finally:
            jail.close()
    base.remove_child(name)


def _mkdir(path: str, folder: int | None) -> None:
    try:
        os.mkdir(path, 0o755, dir_fd=folder)
    except FileExistsError:
        pass


def counters(text: str) -> dict[str, int]:
    """`name value` lines, as in cpu.stat and memory.events."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def is_gone(error: OSError) -> bool:
    """True for the errors that say a group has been removed."""
    return error.errno in (errno.ENOENT, errno.ENODEV)
