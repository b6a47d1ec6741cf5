"""The jails that there are, from the lease of a UID to the removal of the last group.

The warden's own half of a jail: it makes the group and forks the jailer, watches both and
the request's socket, and tears down.  Nothing here waits; a teardown that is not done yet is
looked at again when the group empties, and at the latest after a moment.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import Protocol

from gaoler.sandbox import jailer, process, task, wire
from gaoler.sandbox.cgroup import Group, Layout, remove_jail
from gaoler.sandbox.job import TEARDOWN_MS
from gaoler.sandbox.leases import UidLeases
from gaoler.sandbox.loop import Loop
from gaoler.sandbox.spec import WardenSpec

_MS = 1_000_000
# A teardown looks again by itself this often, beside the events it waits for.
_LOOK_AGAIN_NS = 20 * _MS
_KILL_EACH_NS = 1_000 * _MS
QUARANTINE_AFTER_NS = TEARDOWN_MS * _MS
# For connections, for what came with a message, and for one jail that is made or removed.
_SPARE_DESCRIPTORS = 32


def log(event: str, **fields: object) -> None:
    """One line of JSON on stderr."""
    moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    head = {"time": moment, "level": "info", "event": event, "process": "warden"}
    line = json.dumps({**head, **fields}) + "\n"
    try:
        os.write(2, line.encode())
    except OSError:
        pass  # the log's reader has gone; that must not end a jail


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that was asked for and found to be within the maxima."""

    request_id: str
    memory_bytes: int
    pids: int
    hard_ns: int


class Owner(Protocol):
    """Who asked for a jail."""

    def jail_quarantined(self, jail: Jail) -> None:
        """Its teardown does not end: what it holds stays taken."""

    def jail_gone(self, jail: Jail) -> None:
        """Nothing of it is left."""


@dataclass(slots=True, eq=False)
class Jail:
    """One request's jail."""

    name: str
    wanted: Wanted
    owner: Owner
    uid: int
    group: Group
    events: int | None  # of the group: ready when it empties
    pid: int
    pidfd: int
    request: socket.socket | None = None
    reaped: bool = False
    dying_since_ns: int | None = None
    look_ns: int = 0  # when to look again, once it is dying
    kill_each_ns: int = 0  # when to kill one by one what is left by then
    quarantined: bool = False

    @property
    def due_ns(self) -> int:
        """When this jail wants attention if nothing happens before."""
        return self.wanted.hard_ns if self.dying_since_ns is None else self.look_ns


class Jails:
    """Every jail of this warden.

    Invariant: a jail is listed from the moment its jailer runs until its group is removed
    and its UID is back.
    """

    def __init__(
        self,
        spec: WardenSpec,
        layout: Layout,
        base: Group,
        prepared: task.Prepared,
        loop: Loop,
        withheld: frozenset[int],
    ) -> None:
        """`withheld`: UIDs of the range that processes of an earlier life still have."""
        self._spec = spec
        self._layout = layout
        self._base = base
        self._prepared = prepared
        self._loop = loop
        self._uids = UidLeases(spec.uid_first, spec.uid_last)
        for uid in withheld:
            self._uids.withhold(uid)
        self._jails: dict[str, Jail] = {}  # by name
        # Those whose jailer is not reaped yet, by its pid: afterwards it can be anybody's.
        self._jailers: dict[int, Jail] = {}
        self._most = min(spec.jails_max, _room_for_jails(len(base.folders)))
        self._left: set[str] = set()  # groups of jails that never ran, still to be removed
        self._left_look_ns = 0
        self._made = 0
        # Another life's jails may still be there, in quarantine: no name is used twice.
        self._life = f"{time.time_ns():x}"
        self._own_pid = os.getpid()

    def __len__(self) -> int:
        return len(self._jails)

    @property
    def all_quarantined(self) -> bool:
        """True where no jail is left that can be waited for."""
        return all(jail.quarantined for jail in self._jails.values())

    def counts(self) -> dict[str, int]:
        quarantined = sum(1 for jail in self._jails.values() if jail.quarantined)
        return {"jails": len(self), "uids_free": self._uids.free, "quarantined": quarantined}

    # --- birth ---

    def run(self, wanted: Wanted, owner: Owner, request: socket.socket, job: int) -> Jail | None:
        """Make a jail and hand it the job; `request` is ours from now on.

        Where none can be made the request is told so, and its socket closed.
        """
        try:
            jail, control = self._make(wanted, owner)
        except OSError as error:
            _fail(request, str(error), error.errno or 0)
            return None
        jail.request = request
        # Only a hang-up is of interest: what is written there is the jailer's affair.
        self._loop.watch(request.fileno(), select.EPOLLRDHUP, lambda: self.tear_down(jail))
        with control:
            try:
                socket.send_fds(control, [b"go"], [job, request.fileno()])
            except OSError:
                self.tear_down(jail)
        return jail

    def _make(self, wanted: Wanted, owner: Owner) -> tuple[Jail, socket.socket]:
        """A group, a lease and a jailer that builds its jail.  Raises OSError."""
        if len(self) >= self._most:
            raise OSError(0, "as many jails as there may be")
        uid = self._uids.take()
        if uid is None:
            raise OSError(0, "no UID is free")
        self._made += 1
        name = f"jail-{self._life}-{self._made}"
        group: Group | None = None
        events: int | None = None
        try:
            group = self._layout.make_jail(self._base, name)
            self._layout.limit_jail(group, wanted.memory_bytes, wanted.pids)
            events = self._layout.events(group)
            pid, pidfd, control = self._fork_jailer(uid, group)
        except OSError:
            if events is not None:
                os.close(events)
            self._undo(name, uid, group)
            raise
        jail = Jail(name, wanted, owner, uid, group, events, pid, pidfd)
        self._jails[name] = self._jailers[pid] = jail
        self._loop.watch(pidfd, select.EPOLLIN, self.reap)
        return jail, control

    def _fork_jailer(self, uid: int, group: Group) -> tuple[int, int, socket.socket]:
        """(pid, pidfd, our end of its socket) of a new jailer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                process.close_all_but([theirs.fileno(), *group.folders.values()])
                process.bind_to_parent(self._own_pid)
                process.in_child(
                    lambda: jailer.main(
                        theirs, self._spec, self._layout, group, uid, self._prepared
                    ),
                    lambda error: log("jailer_failed", error=repr(error)),
                )
        try:
            return pid, os.pidfd_open(pid), ours
        except OSError:
            # Descriptors have run out.  It has only begun, so this wait is short.
            ours.close()
            os.kill(pid, signal.SIGKILL)
            process.wait_for(pid)
            raise

    def _undo(self, name: str, uid: int, group: Group | None) -> None:
        """What was made of a jail whose jailer does not run."""
        self._uids.give_back(uid)
        if group is not None:
            group.close()
        self._left.add(name)
        self._remove_left(time.monotonic_ns())

    def _remove_left(self, now: int) -> None:
        """Try it, and else again later: a group that is forgotten stays for good."""
        for name in list(self._left):
            try:
                remove_jail(self._base, name)
            except OSError as error:
                log("group_waits", name=name, error=str(error))
                self._left_look_ns = now + _LOOK_AGAIN_NS
            else:
                self._left.discard(name)

    # --- death ---

    def due_ns(self) -> int | None:
        """When `look` is to be called if nothing happens before; None: never."""
        due = [jail.due_ns for jail in self._jails.values()]
        if self._left:
            due.append(self._left_look_ns)
        return min(due, default=None)

    def look(self, now: int) -> None:
        """Tear down what is past its hard deadline; look again at what is dying."""
        if self._left and now >= self._left_look_ns:
            self._remove_left(now)
        for jail in list(self._jails.values()):
            if now < jail.due_ns:
                continue
            if jail.dying_since_ns is None:
                log("jail_hard_deadline", id=jail.wanted.request_id)
                self.tear_down(jail)
            else:
                self._bury_if_empty(jail)

    def tear_down_all(self) -> None:
        for jail in list(self._jails.values()):
            self.tear_down(jail)

    def reap(self) -> None:
        """Our jailers that have ended, and the orphans of those: we are the subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            jail = self._jailers.get(pid)
            if jail is not None:
                if status and jail.dying_since_ns is None:
                    log("jailer_died", id=jail.wanted.request_id, status=status)
                self._mark_reaped(jail)
                self.tear_down(jail)

    def _mark_reaped(self, jail: Jail) -> None:
        jail.reaped = True
        del self._jailers[jail.pid]
        self._loop.unwatch(jail.pidfd)  # it would be ready for ever
        os.close(jail.pidfd)

    def tear_down(self, jail: Jail) -> None:
        """Kill everything in the jail; the rest follows when it is empty.  Idempotent."""
        if jail.dying_since_ns is None:
            jail.dying_since_ns = time.monotonic_ns()
            jail.kill_each_ns = jail.dying_since_ns + _LOOK_AGAIN_NS
            if jail.request is not None:
                self._loop.unwatch(jail.request.fileno())
            if jail.events is not None:
                self._loop.watch(jail.events, select.EPOLLPRI, lambda: self._emptied(jail))
        self._bury_if_empty(jail)

    def _emptied(self, jail: Jail) -> None:
        assert jail.events is not None
        try:
            os.pread(jail.events, 4096, 0)  # makes it quiet until the next change
        except OSError:
            self._loop.unwatch(jail.events)  # the group was removed, but not in all hierarchies
        self._bury_if_empty(jail)

    def _bury_if_empty(self, jail: Jail) -> None:
        """Remove a dying jail if it is empty; else look again later.

        The jailer is signalled by itself too: it may not have joined its group yet.
        """
        if self._jails.get(jail.name) is not jail or jail.dying_since_ns is None:
            return
        now = time.monotonic_ns()
        jail.look_ns = now + _LOOK_AGAIN_NS
        try:
            self._layout.kill(jail.group)
            if now >= jail.kill_each_ns:
                # Each time it takes as long as there are processes: seldom, then.
                jail.kill_each_ns = now + _KILL_EACH_NS
                self._layout.kill_each(jail.group)
            if not jail.reaped:
                signal.pidfd_send_signal(jail.pidfd, signal.SIGKILL)
                if os.waitpid(jail.pid, os.WNOHANG)[0] == jail.pid:
                    self._mark_reaped(jail)
            if jail.reaped and not self._layout.populated(jail.group):
                remove_jail(self._base, jail.name)
                self._bury(jail)
                return
        except OSError as error:
            log("teardown_waits", id=jail.wanted.request_id, error=str(error))
        if not jail.quarantined and now - jail.dying_since_ns > QUARANTINE_AFTER_NS:
            self._quarantine(jail)

    def _bury(self, jail: Jail) -> None:
        del self._jails[jail.name]
        if jail.events is not None:
            self._loop.unwatch(jail.events)
            os.close(jail.events)
        jail.group.close()
        self._uids.give_back(jail.uid)
        jail.owner.jail_gone(jail)
        _let_go(jail)

    def _quarantine(self, jail: Jail) -> None:
        """What will not die keeps its UID, group and memory; its slot goes back."""
        jail.quarantined = True
        log("jail_quarantined", id=jail.wanted.request_id, uid=jail.uid)
        jail.owner.jail_quarantined(jail)
        _let_go(jail)


def _room_for_jails(hierarchies: int) -> int:
    """How many jails we have descriptors for, with those that making and removing one takes.

    Each keeps its group, the group's events, the jailer's pidfd and the request's socket.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (limit - len(os.listdir("/proc/self/fd")) - _SPARE_DESCRIPTORS) // (hierarchies + 3)


def _let_go(jail: Jail) -> None:
    """End of file on the request's socket, whoever still holds a copy of it."""
    if jail.request is not None:
        try:
            jail.request.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        jail.request.close()
        jail.request = None


def _fail(request: socket.socket, stage: str, errno: int) -> None:
    """Tell the worker that nothing was started; the socket is fresh, so this fits."""
    failed = {"code": "sandbox_setup_failed", "stage": stage, "errno": errno}
    with request:
        try:
            request.send(wire.json_frame(wire.FAILED, failed), socket.MSG_DONTWAIT)
        except OSError:
            pass  # the client has left
