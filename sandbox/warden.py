"""The warden: the only code that holds privileges.

runs as      root, started by exec as a fresh interpreter, never forked from threads
parent       `gaoler serve`; children: one jailer for each request
namespaces   mount, UTS, IPC and network of its own, the last empty; the host's PID and user
cgroup       the service's
descriptors  the listening socket, a connection to the worker; for each jail its group, the
             jailer's pidfd and socket, and the request's socket
dies when    `gaoler serve` ends or asks it to; it kills and removes every jail first
killed by    nobody, in good order; if it is killed, its jailers die with it, and the next
             warden sweeps what is left

It believes nothing that the worker says: a job must be a sealed memfd, numbers are held
against the spec's maxima, surplus descriptors are closed, and no path comes from outside.
It never blocks on a socket: whatever hangs is killed.

Messages on the worker's connection are datagrams of JSON (SOCK_SEQPACKET):

    worker   {"op": "run", "id": text, "memory_bytes": n, "pids": n, "hard_ns": n}
             with two descriptors: the request's socket, the job
    worker   {"op": "ping", "n": n}
    warden   {"op": "pong", "n": n, "jails": n, "uids_free": n, "quarantined": n}
    warden   {"op": "quarantined", "id": text}   its UID, group and memory stay taken
    warden   {"op": "released", "id": text}      no longer

The request's socket carries the jailer's frames; its end of file means that the jail has
been torn down, or, if the worker's connection has ended too, that the warden has died.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gaoler.sandbox import (
    capabilities,
    hierarchy,
    jailer,
    mounts,
    namespaces,
    process,
    seccomp,
    syscalls,
    task,
    wire,
)
from gaoler.sandbox.cgroup import Group, Layout, remove_jail
from gaoler.sandbox.leases import UidLeases
from gaoler.sandbox.spec import OVERHEAD_PIDS, WardenSpec

_MS = 1_000_000
_LONGEST_MESSAGE = 4096
# A teardown looks again by itself this often, beside the events it waits for.
_TEARDOWN_LOOK_NS = 20 * _MS
_QUARANTINE_AFTER_NS = 10_000 * _MS
_CREDENTIALS = struct.Struct("3i")


def log(event: str, **fields: object) -> None:
    """One line of JSON on stderr."""
    line = json.dumps({"event": event, "process": "warden", **fields}) + "\n"
    try:
        os.write(2, line.encode())
    except OSError:
        pass  # the log's reader has gone; that must not end a jail


@dataclass(slots=True)
class Jail:
    """One request's jail as the warden sees it.

    Invariant: a jail is in `Warden.jails` from before its UID is leased until its group is
    removed and its UID is back.
    """

    name: str
    uid: int
    group: Group
    pid: int
    pidfd: int
    control: socket.socket  # to the jailer, until it has the job
    events: int | None  # of the group
    request_id: str = ""
    connection: Connection | None = None
    request: socket.socket | None = None
    hard_ns: int = 0
    reaped: bool = False
    dying_since_ns: int | None = None
    look_ns: int | None = None
    quarantined: bool = False


@dataclass(slots=True, eq=False)
class Connection:
    """A worker."""

    sock: socket.socket
    jails: dict[str, Jail] = field(default_factory=dict)

    def say(self, **message: object) -> bool:
        """False where the worker does not take it: it is to be cut off."""
        try:
            self.sock.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True


class Refused(Exception):
    """A message of the worker that is not carried out."""


class Warden:
    """One loop over everything that can happen; nothing in it waits."""

    def __init__(self, spec: WardenSpec, layout: Layout, prepared: task.Prepared) -> None:
        self.spec = spec
        self.layout = layout
        self.prepared = prepared
        self.base = layout.open_base(spec.instance)
        self.uids = UidLeases(spec.uid_first, spec.uid_last)
        self.jails: dict[str, Jail] = {}
        self.connections: set[Connection] = set()
        self.poller = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.new_in_batch: set[int] = set()
        self.made = 0
        self.stopping = False
        self.pid = os.getpid()

    # --- the loop ---

    def watch(self, descriptor: int, mask: int, handler: Callable[[int], None]) -> None:
        self.handlers[descriptor] = handler
        # A number may be used again while events of its former owner are still in hand.
        self.new_in_batch.add(descriptor)
        self.poller.register(descriptor, mask)

    def unwatch(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poller.unregister(descriptor)

    def serve(self, listener: socket.socket, lifeline: int) -> None:
        """Run until the lifeline's other end closes or a stop is asked for."""
        self.watch(listener.fileno(), select.EPOLLIN, lambda _: self._accept(listener))
        self.watch(lifeline, select.EPOLLIN | select.EPOLLHUP, lambda _: self._stop("parent ended"))
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop("SIGTERM"))
        self.watch(wake_read, select.EPOLLIN, lambda _: self._woken(wake_read))
        log("warden_ready", layout=self.layout.name, jails_max=self.spec.jails_max)
        while not (self.stopping and not self.jails):
            batch = self.poller.poll(self._timeout())
            self.new_in_batch.clear()
            for descriptor, mask in batch:
                handler = self.handlers.get(descriptor)
                if handler is not None and descriptor not in self.new_in_batch:
                    handler(mask)
            self._pass_time(time.monotonic_ns())

    def _timeout(self) -> float | None:
        times = [jail.look_ns or jail.hard_ns for jail in self.jails.values()]
        if not times:
            return None
        return max(0.0, (min(times) - time.monotonic_ns()) / 1e9) + 0.0005

    def _woken(self, wake: int) -> None:
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        """Our jailers, and what they left behind: we are the subreaper."""
        by_pid = {jail.pid: jail for jail in self.jails.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            jail = by_pid.get(pid)
            if jail is not None:
                self._mark_reaped(jail)
                self._tear_down(jail)
                if status:
                    log("jailer_died", id=jail.request_id, status=status)

    def _mark_reaped(self, jail: Jail) -> None:
        jail.reaped = True
        self.unwatch(jail.pidfd)  # it would be ready for ever

    def _pass_time(self, now: int) -> None:
        for jail in list(self.jails.values()):
            if jail.dying_since_ns is None:
                if now >= jail.hard_ns:
                    log("jail_hard_deadline", id=jail.request_id)
                    self._tear_down(jail)
            elif jail.look_ns is not None and now >= jail.look_ns:
                self._try_to_bury(jail, now)

    def _stop(self, why: str) -> None:
        if not self.stopping:
            self.stopping = True
            log("warden_stopping", why=why, jails=len(self.jails))
        for jail in list(self.jails.values()):
            self._tear_down(jail)

    # --- the worker ---

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] not in (self.spec.service_uid, 0) or self.stopping:
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.add(connection)
        self.watch(sock.fileno(), select.EPOLLIN, lambda _: self._hear(connection))

    def _hear(self, connection: Connection) -> None:
        try:
            data, ancillary, flags, _ = connection.sock.recvmsg(
                _LONGEST_MESSAGE, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self._cut_off(connection)
            return
        descriptors = _descriptors(ancillary)
        try:
            if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self._cut_off(connection)
            else:
                self._obey(connection, data, descriptors)
        except Refused as refusal:
            log("message_refused", why=str(refusal))
            self._cut_off(connection)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _cut_off(self, connection: Connection) -> None:
        """The worker is gone, or talks nonsense: end all that it had asked for."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.unwatch(connection.sock.fileno())
        connection.sock.close()
        for jail in list(connection.jails.values()):
            self._tear_down(jail)

    def _obey(self, connection: Connection, data: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(data)
            operation = message["op"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused("not a message") from error
        if operation == "ping":
            self._pong(connection, message)
        elif operation == "run":
            self._run(connection, message, descriptors)
        else:
            raise Refused("an unknown operation")

    def _pong(self, connection: Connection, message: dict[str, Any]) -> None:
        spoken = connection.say(
            op="pong",
            n=message.get("n") if isinstance(message.get("n"), int) else 0,
            jails=len(self.jails),
            uids_free=self.uids.free,
            quarantined=sum(1 for jail in self.jails.values() if jail.quarantined),
        )
        if not spoken:
            self._cut_off(connection)

    # --- a jail's life ---

    def _run(self, connection: Connection, message: dict[str, Any], descriptors: list[int]) -> None:
        request, job = self._take_request(descriptors)
        memory, pids, hard_ns, request_id = self._numbers(message)
        try:
            jail = self._make_jail(connection, request_id, memory, pids, hard_ns)
        except OSError as error:
            self._fail(request, str(error), error.errno or 0)
            return
        jail.request = request
        # Only a hang-up is of interest: what is written there is the jailer's affair.
        self.watch(request.fileno(), select.EPOLLRDHUP, lambda _: self._tear_down(jail))
        try:
            socket.send_fds(jail.control, [b"go"], [job, request.fileno()])
        except OSError:
            self._tear_down(jail)
        finally:
            jail.control.close()

    def _take_request(self, descriptors: list[int]) -> tuple[socket.socket, int]:
        """The request's socket (a duplicate that we own) and the job.  Raises Refused."""
        if len(descriptors) != 2:
            raise Refused("a run needs two descriptors")
        request, job = descriptors
        try:
            if wire.sealed_size(job) > self.spec.job_bytes_max:
                raise Refused("the job is too large")
            sock = socket.socket(fileno=os.dup(request))
        except (wire.ProtocolError, OSError) as error:
            raise Refused(str(error)) from error
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            sock.close()
            raise Refused("the first descriptor is not a stream socket")
        return sock, job

    def _numbers(self, message: dict[str, Any]) -> tuple[int, int, int, str]:
        """Memory, pids, hard deadline and id of a run, within the maxima.  Raises Refused."""
        now = time.monotonic_ns()
        request_id = message.get("id")
        if not isinstance(request_id, str) or len(request_id) > 200:
            raise Refused("id")
        slack = self.spec.ttl_slack_ms + 1000
        latest = now + (self.spec.ceiling_ms_max + slack) * _MS
        most = {
            "memory_bytes": self.spec.memory_bytes_max,
            "pids": self.spec.limits_max.pids * self.spec.width_max + OVERHEAD_PIDS,
            "hard_ns": latest,
        }
        for name, limit in most.items():
            value = message.get(name)
            if type(value) is not int or not 0 < value <= limit:
                raise Refused(f"{name} is not within 1..{limit}")
        return message["memory_bytes"], message["pids"], message["hard_ns"], request_id

    def _make_jail(
        self, connection: Connection, request_id: str, memory: int, pids: int, hard_ns: int
    ) -> Jail:
        """A group, a lease and a jailer that builds its jail.  Raises OSError."""
        if len(self.jails) >= self.spec.jails_max:
            raise OSError(0, "as many jails as there may be")
        uid = self.uids.take()
        if uid is None:
            raise OSError(0, "no UID is free")
        self.made += 1
        name = f"jail-{self.made}"
        try:
            group = self.layout.make_jail(self.base, name)
            self.layout.limit_jail(group, memory, pids)
            jail = self._fork_jailer(name, uid, group)
        except OSError:
            self.uids.give_back(uid)
            self._remove_half_made(name)
            raise
        jail.request_id, jail.connection, jail.hard_ns = request_id, connection, hard_ns
        self.jails[name] = jail
        connection.jails[name] = jail
        self.watch(jail.pidfd, select.EPOLLIN, lambda _: self._reap())
        return jail

    def _fork_jailer(self, name: str, uid: int, group: Group) -> Jail:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        events = self.layout.events(group)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            process.close_all_but([theirs.fileno(), *group.folders.values()])
            process.bind_to_parent(self.pid)
            process.in_child(
                lambda: jailer.main(theirs, self.spec, self.layout, group, uid, self.prepared),
                lambda error: log("jailer_failed", error=repr(error)),
            )
        theirs.close()
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            # Descriptors have run out.  It has only begun, so this wait is short.
            os.kill(pid, signal.SIGKILL)
            process.wait_for(pid)
            raise
        return Jail(name, uid, group, pid, pidfd, ours, events)

    def _remove_half_made(self, name: str) -> None:
        try:
            remove_jail(self.base, name)
        except OSError as error:
            log("group_left", name=name, error=str(error))

    def _fail(self, request: socket.socket, stage: str, errno: int) -> None:
        """Tell the worker that nothing was started; the socket is fresh, so this fits."""
        failed = {"code": "sandbox_setup_failed", "stage": stage, "errno": errno}
        try:
            request.send(wire.json_frame(wire.FAILED, failed), socket.MSG_DONTWAIT)
        except OSError:
            pass
        request.close()

    # --- teardown ---

    def _tear_down(self, jail: Jail) -> None:
        """Kill everything in the jail; the rest follows when it is empty.  Idempotent."""
        if jail.dying_since_ns is None:
            jail.dying_since_ns = time.monotonic_ns()
            if jail.request is not None:
                self.unwatch(jail.request.fileno())
            if jail.events is not None:
                self.watch(jail.events, select.EPOLLPRI, lambda _: self._emptied(jail))
        self._try_to_bury(jail, time.monotonic_ns())

    def _emptied(self, jail: Jail) -> None:
        assert jail.events is not None
        os.pread(jail.events, 4096, 0)
        self._try_to_bury(jail, time.monotonic_ns())

    def _try_to_bury(self, jail: Jail, now: int) -> None:
        """Remove a dying jail if it is empty; else look again later.

        The jailer is signalled by itself too: it may not have joined its group yet.
        """
        if jail.name not in self.jails or jail.dying_since_ns is None:
            return
        jail.look_ns = now + _TEARDOWN_LOOK_NS
        try:
            self.layout.kill(jail.group)
            if not jail.reaped:
                signal.pidfd_send_signal(jail.pidfd, signal.SIGKILL)
                if os.waitpid(jail.pid, os.WNOHANG)[0] == jail.pid:
                    self._mark_reaped(jail)
            if jail.reaped and not self.layout.populated(jail.group):
                remove_jail(self.base, jail.name)
                self._buried(jail)
                return
        except (OSError, ChildProcessError) as error:
            log("teardown_waits", id=jail.request_id, error=str(error))
        if not jail.quarantined and now - jail.dying_since_ns > _QUARANTINE_AFTER_NS:
            self._quarantine(jail)

    def _buried(self, jail: Jail) -> None:
        del self.jails[jail.name]
        self.unwatch(jail.pidfd)
        os.close(jail.pidfd)
        if jail.events is not None:
            self.unwatch(jail.events)
            os.close(jail.events)
        jail.group.close()
        self.uids.give_back(jail.uid)
        if jail.quarantined:
            self._say(jail, "released")
        if jail.connection is not None:
            jail.connection.jails.pop(jail.name, None)
        self._let_go(jail)

    def _quarantine(self, jail: Jail) -> None:
        """What will not die keeps its UID, group and memory; its slot goes back."""
        jail.quarantined = True
        log("jail_quarantined", id=jail.request_id, uid=jail.uid)
        self._say(jail, "quarantined")
        self._let_go(jail)

    def _say(self, jail: Jail, operation: str) -> None:
        connection = jail.connection
        if connection is None or connection not in self.connections:
            return
        if not connection.say(op=operation, id=jail.request_id):
            self._cut_off(connection)

    def _let_go(self, jail: Jail) -> None:
        """End of file on the request's socket, whoever still holds a copy of it."""
        if jail.request is not None:
            try:
                jail.request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            jail.request.close()
            jail.request = None


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += memoryview(raw[: len(raw) - len(raw) % 4]).cast("i").tolist()
    return found


# --- start and stop ---


def prepare() -> task.Prepared:
    """What is found out once, before anything is forked."""
    return task.Prepared(
        landlock_abi=syscalls.landlock_abi(),
        programs=seccomp.compile_all(),
        oom_protected=process.protect_from_oom(),
    )


def await_predecessor(spec: WardenSpec) -> int:
    """Wait until no other warden of this instance lives; a descriptor that says that we do.

    One whose `gaoler serve` was killed is still removing its jails, and would take our
    socket away at its end.
    """
    path = os.path.join(spec.runtime_dir, "warden.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def sweep(layout: Layout, instance: str) -> int:
    """Kill and remove the jails that an earlier life of this instance left; how many."""
    base = layout.open_base(instance)
    try:
        names = sorted(base.children())
        for name in names:
            _sweep_jail(layout, base, name)
        return len(names)
    finally:
        base.close()


def _sweep_jail(layout: Layout, base: Group, name: str) -> None:
    deadline = time.monotonic() + _QUARANTINE_AFTER_NS / 1e9
    jail = base.child(name, make=True)  # an earlier removal may have stopped half-way
    try:
        while True:
            layout.kill(jail)
            if not layout.populated(jail):
                break
            if time.monotonic() > deadline:
                raise OSError(0, f"processes of an earlier life will not die: {name}")
            time.sleep(0.005)
    finally:
        jail.close()
    remove_jail(base, name)


def listen(spec: WardenSpec) -> socket.socket:
    """The socket that the worker connects to; only the service user may."""
    try:
        os.unlink(spec.socket_path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    previous = os.umask(0o177)
    try:
        listener.bind(spec.socket_path)
    finally:
        os.umask(previous)
    os.chown(spec.socket_path, spec.service_uid, spec.service_gid)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def enter_own_namespaces(spec: WardenSpec) -> None:
    """Leave the host's mounts, names, shared memory and network behind."""
    syscalls.unshare(namespaces.WARDEN)
    socket.sethostname(namespaces.HOSTNAME)
    os.umask(0)
    mounts.build_template(spec.root_dir, spec.readonly_paths)
    os.umask(0o077)


def main() -> int:
    """`python -m gaoler.sandbox.warden SPEC LIFELINE READY`, as `gaoler serve` starts it.

    Three descriptors: the spec is read from the first; the end of the second's other side
    is the end of us; a byte is written to the third once jobs are taken.
    """
    spec_descriptor, lifeline, ready = (int(text) for text in sys.argv[1:4])
    with os.fdopen(spec_descriptor, "rb") as file:
        spec = WardenSpec.load(file.read())
    process.close_all_but([lifeline, ready])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.raise_descriptor_limit()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    lock = await_predecessor(spec)
    layout = hierarchy.find_layout()
    swept = sweep(layout, spec.instance)
    if swept:
        log("swept", jails=swept)
    enter_own_namespaces(spec)
    prepared = prepare()
    capabilities.keep_only(capabilities.CHAIN)
    warden = Warden(spec, layout, prepared)
    listener = listen(spec)
    gc.collect()
    gc.freeze()
    gc.disable()
    os.write(ready, b"1")
    os.close(ready)
    warden.serve(listener, lifeline)
    warden.base.close()
    layout.remove_base(spec.instance)
    os.unlink(spec.socket_path)
    os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
