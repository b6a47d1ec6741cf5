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

import faulthandler
import fcntl
import gc
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from typing import Any

from gaoler.sandbox import (
    capabilities,
    hierarchy,
    mounts,
    namespaces,
    process,
    seccomp,
    syscalls,
    task,
    wire,
)
from gaoler.sandbox.cgroup import Layout
from gaoler.sandbox.jails import Jail, Jails, Wanted, log
from gaoler.sandbox.loop import Loop
from gaoler.sandbox.spec import OVERHEAD_PIDS, WardenSpec
from gaoler.sandbox.sweep import sweep

_MS = 1_000_000
_LONGEST_MESSAGE = 4096
_LONGEST_ID = 200
_MOST_DESCRIPTORS = 8
# The worker's own slack, on top of RUNNER_TTL_SLACK_MS, before we step in.
_HARD_SLACK_MS = 1000
# How long a warden that is ending may keep its successor waiting.
_PREDECESSOR_S = 25.0
_MOST_CONNECTIONS = 8
_CREDENTIALS = struct.Struct("3i")
_NO_LINGER = struct.pack("ii", 0, 0)


class Refused(Exception):
    """A message of the worker that is not carried out: it is cut off."""


class Connection:
    """A worker: what it says, and the jails that it asked for."""

    def __init__(self, sock: socket.socket, uid: int, warden: Warden) -> None:
        self.sock = sock
        self.uid = uid
        self.jails: set[Jail] = set()
        self._warden = warden

    def say(self, **message: object) -> None:
        """Send, or cut the worker off where it does not take it."""
        if self.sock.fileno() < 0:
            return  # it has gone; its jails are still dying
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            self.sock.send(json.dumps(message).encode(), flags)
        except OSError:
            self._warden.cut_off(self)

    def jail_quarantined(self, jail: Jail) -> None:
        self.say(op="quarantined", id=jail.wanted.request_id)

    def jail_gone(self, jail: Jail) -> None:
        self.jails.discard(jail)
        if jail.quarantined:
            self.say(op="released", id=jail.wanted.request_id)


class Warden:
    """One loop over everything that can happen; nothing in it waits."""

    def __init__(
        self,
        spec: WardenSpec,
        layout: Layout,
        prepared: task.Prepared,
        withheld: frozenset[int] = frozenset(),
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.base = layout.open_base(spec.instance)
        self.loop = Loop()
        self.jails = Jails(spec, layout, self.base, prepared, self.loop, withheld)
        self.connections: set[Connection] = set()
        self.stopping = False
        self.lifeline = -1

    def serve(self, listener: socket.socket, lifeline: int) -> None:
        """Run until the lifeline's other end closes or a stop is asked for."""
        self.lifeline = lifeline
        self._listen_to_signals()
        self.loop.watch(listener.fileno(), select.EPOLLIN, lambda: self._accept(listener))
        self.loop.watch(lifeline, select.EPOLLIN, lambda: self._stop("parent ended"))
        log("warden_ready", layout=self.layout.name, jails_max=self.spec.jails_max)
        # What is in quarantine cannot be waited for: the next warden sweeps it.
        while not (self.stopping and self.jails.all_quarantined):
            self.loop.turn(self._timeout_s())
            self.jails.look(time.monotonic_ns())

    def _listen_to_signals(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop("SIGTERM"))
        self.loop.watch(wake_read, select.EPOLLIN, lambda: self._woken(wake_read))

    def _woken(self, wake: int) -> None:
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        self.jails.reap()

    def _timeout_s(self) -> float | None:
        due_ns = self.jails.due_ns()
        if due_ns is None:
            return None
        return max(0.0, (due_ns - time.monotonic_ns()) / 1e9) + 0.0005

    def _stop(self, why: str) -> None:
        if not self.stopping:
            self.stopping = True
            self.loop.unwatch(self.lifeline)  # it would be ready for ever
            log("warden_stopping", why=why, jails=len(self.jails))
        self.jails.tear_down_all()

    # --- the worker ---

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        uid = _peer_uid(sock)
        full = len(self.connections) >= _MOST_CONNECTIONS
        if uid not in (self.spec.service_uid, 0) or full or self.stopping:
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock, uid, self)
        self.connections.add(connection)
        self.loop.watch(sock.fileno(), select.EPOLLIN, lambda: self._hear(connection))

    def _hear(self, connection: Connection) -> None:
        try:
            data, ancillary, flags, _ = connection.sock.recvmsg(
                _LONGEST_MESSAGE,
                socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4),
                socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return
        except OSError:
            self.cut_off(connection)
            return
        descriptors = wire.descriptors(ancillary)
        try:
            if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self.cut_off(connection)
            else:
                self._obey(connection, data, descriptors)
        except Refused as refusal:
            log("message_refused", why=str(refusal))
            self.cut_off(connection)
        finally:
            for descriptor in descriptors:
                _discard(descriptor)

    def cut_off(self, connection: Connection) -> None:
        """The worker is gone, or talks nonsense: end all that it had asked for.  Idempotent."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.loop.unwatch(connection.sock.fileno())
        connection.sock.close()
        for jail in list(connection.jails):
            self.jails.tear_down(jail)

    def _obey(self, connection: Connection, data: bytes, descriptors: list[int]) -> None:
        try:
            message = json.loads(data)
            operation = message["op"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused("not a message") from error
        if operation == "ping":
            number = message.get("n")
            known = number if type(number) is int else 0
            connection.say(op="pong", n=known, **self.jails.counts())
        elif operation == "run":
            self._run(connection, message, descriptors)
        else:
            raise Refused("an unknown operation")

    def _run(self, connection: Connection, message: dict[str, Any], descriptors: list[int]) -> None:
        if self.stopping:
            return  # its end of the request's socket closes: that says it
        wanted = self._wanted(message)
        request, job = self._take_request(descriptors, connection.uid)
        jail = self.jails.run(wanted, connection, request, job)
        if jail is not None and jail.request is not None:  # else it has gone already
            connection.jails.add(jail)

    def _take_request(self, descriptors: list[int], uid: int) -> tuple[socket.socket, int]:
        """The request's socket, taken off the list, and the job.  Raises Refused."""
        if len(descriptors) != 2:
            raise Refused("a run needs two descriptors")
        try:
            if wire.sealed_size(descriptors[1]) > self.spec.job_bytes_max:
                raise Refused("the job is too large")
        except wire.ProtocolError as error:
            raise Refused(str(error)) from error
        return _stream_socket(descriptors, uid), descriptors[0]

    def _wanted(self, message: dict[str, Any]) -> Wanted:
        """The numbers and the id of a run, within the maxima.  Raises Refused."""
        spec = self.spec
        slack_ms = spec.ttl_slack_ms + _HARD_SLACK_MS
        most = {
            "memory_bytes": spec.memory_bytes_max,
            "pids": spec.limits_max.pids * spec.width_max + OVERHEAD_PIDS,
            "hard_ns": time.monotonic_ns() + (spec.ceiling_ms_max + slack_ms) * _MS,
        }
        for name, limit in most.items():
            value = message.get(name)
            if type(value) is not int or not 0 < value <= limit:
                raise Refused(f"{name} is not within 1..{limit}")
        request_id = message.get("id")
        if not isinstance(request_id, str) or len(request_id) > _LONGEST_ID:
            raise Refused("id is no short text")
        return Wanted(request_id, *(message[name] for name in most))


def _stream_socket(descriptors: list[int], uid: int) -> socket.socket:
    """The first descriptor as a socket of ours, taken off the list.  Raises Refused.

    No duplicate: want of room for one would cost the worker all its jails.  Its other end
    must be `uid`'s: root speaks on it, and that is worth something elsewhere.
    """
    try:
        sock = socket.socket(fileno=descriptors[0])
    except OSError as error:
        raise Refused("the first descriptor is not a socket") from error
    if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or _peer_uid(sock) != uid:
        sock.detach()  # it is discarded with the rest
        raise Refused("the first descriptor is not a stream socket of the sender's own")
    del descriptors[0]
    return sock


def _peer_uid(sock: socket.socket) -> int:
    """The user that connected or made the other end; for one without, -1."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _discard(descriptor: int) -> None:
    """Close what somebody else has sent, whatever it is: neither its errors nor, of a socket,
    the wait for its last bytes are ours."""
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    except OSError:
        pass  # no such option, no descriptor left, or a file that cannot be asked
    try:
        os.close(descriptor)
    except OSError:
        pass  # it is closed all the same


# --- start and stop ---


def prepare(spec: WardenSpec) -> task.Prepared:
    """What is found out once, before anything is forked."""
    return task.Prepared(
        landlock_abi=syscalls.landlock_abi(),
        programs=seccomp.compile_all(),
        toolchain=mounts.toolchain(spec.readonly_paths),
        oom_protected=process.protect_from_oom(),
    )


def await_predecessor(spec: WardenSpec) -> int:
    """Wait until no other warden of this instance lives; a descriptor that says that we do.

    One whose `gaoler serve` was killed is still removing its jails, and would take our
    socket away at its end.
    """
    path = os.path.join(spec.runtime_dir, "warden.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PREDECESSOR_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                log("predecessor_lives", lock=path)
                raise
            time.sleep(0.02)
        else:
            return lock


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
    os.umask(0o022)
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
    faulthandler.register(signal.SIGUSR1)  # a process in trouble can be asked
    process.raise_descriptor_limit()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    lock = await_predecessor(spec)
    layout = hierarchy.find_layout()
    withheld = sweep(layout, spec.instance)
    enter_own_namespaces(spec)
    prepared = prepare(spec)
    capabilities.keep_only(capabilities.CHAIN)
    warden = Warden(spec, layout, prepared, withheld)
    listener = listen(spec)
    gc.collect()
    gc.freeze()
    gc.disable()
    os.write(ready, b"1")
    os.close(ready)
    warden.serve(listener, lifeline)
    warden.base.close()
    try:
        layout.remove_base(spec.instance)
    except OSError as error:
        log("groups_left", error=str(error))  # of jails in quarantine
    os.unlink(spec.socket_path)
    os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
