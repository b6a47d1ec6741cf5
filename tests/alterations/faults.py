"""Faults on order: a request's own id says what is to fail in it, where and how.

Started with `faults:by_request`, a warden behaves as ever but for requests whose id is a
`Fault`'s.  The id is known in every process of a jail, whatever that one can still see or
call, since it is noted before the jailer is forked.  So a fault befalls one request alone,
and many can be tried on one warden side by side.

A fault strikes one *part*: "warden", "teardown" (the warden's, later), "jailer",
"supervisor", "init", "task" (before exec) or "collector".  Its *point* is one of, or more
with a comma between,

    stage NAME      `Stages.enter` of that stage
    call NAME       one of CALLS
    write FILE      a write to a file of a control group
    inputs.write    a write to an input file
    init.write      init's report of the end
    say KEY         a message of the task to its supervisor that begins with KEY
    frames          what the jailer says to the worker, or the supervisor to the jailer

and *how* is an errno's name, the name of an exception, SIGKILL (of itself) or HANG.  For the
last two kinds of point it is a name in MESSAGES or FRAMES, or HALF: sending a result fails
shortly before its end.
"""

from __future__ import annotations

import builtins
import collections
import ctypes
import errno
import os
import resource
import signal
import socket
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gaoler.sandbox import (
    cgroup,
    cgroup_v1,
    cgroup_v2,
    collect,
    init,
    inputs,
    jailer,
    jails,
    job,
    process,
    supervisor,
    task,
    warden,
    wire,
)

HANG = "hang"
HALF = "half"
_HEAD = "fault"
_PR_SET_NAME = 15


@dataclass(frozen=True)
class Fault:
    part: str
    point: str
    how: str
    after: int = 0  # so often the process gets past the point
    times: int = 1  # and so often it is struck then
    task: int = 0  # of which of the jail's tasks, in the order of their supervisors' start

    @property
    def request_id(self) -> str:
        numbers = f"{self.after}|{self.times}|{self.task}"
        return f"{_HEAD}|{self.part}|{self.point}|{self.how}|{numbers}"

    @classmethod
    def of(cls, request_id: object) -> Fault | None:
        """The fault that a request's id stands for; the client has added "/" and a number."""
        head, *fields = str(request_id).rpartition("/")[0].split("|")
        if head != _HEAD:
            return None
        part, point, how, *numbers = fields
        return cls(part, point, how, *map(int, numbers))


def name_of_stuck(request_name: str) -> str:
    """What a process that hangs calls itself, for whoever wants to find it on the host."""
    return "stuck-" + request_name.rpartition("/")[2]


@dataclass
class _Here:
    """Where this process is, and what is to happen here."""

    part: str = ""
    request_name: str = ""
    fault: Fault | None = None
    task: int = 0


_here = _Here()
_met: collections.Counter[str] = collections.Counter()  # by request, in this process
_libc = ctypes.CDLL(None)


def _how(point: str) -> str | None:
    """How to fail at this point, None where all goes on."""
    fault = _here.fault
    if fault is None or fault.part != _here.part or point not in fault.point.split(","):
        return None
    if fault.part in ("supervisor", "init", "task", "collector") and fault.task != _here.task:
        return None
    _met[_here.request_name] += 1
    struck = fault.after < _met[_here.request_name] <= fault.after + fault.times
    return fault.how if struck else None


def _strike(how: str) -> None:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(137)  # PID 1 of a namespace is deaf to its own signals
    if how == HANG:
        _libc.prctl(_PR_SET_NAME, name_of_stuck(_here.request_name).encode(), 0, 0, 0)
        while True:
            time.sleep(3600)
    if hasattr(errno, how):
        number = getattr(errno, how)
        raise OSError(number, os.strerror(number))
    raise getattr(builtins, how)(f"a fault at {_here.part}")


def _pass(point: str) -> None:
    how = _how(point)
    if how is not None:
        _strike(how)


# --- what can fail ------------------------------------------------------------------------

# By the name in `call NAME`: who has it.  Looked up at each call, so a change is seen by all.
CALLS: dict[str, tuple[Any, ...]] = {
    "fork": (os,),
    "pidfd_open": (os,),
    "pipe": (os,),
    "dup": (os,),
    "mkdir": (os,),
    "rmdir": (os,),
    "read": (os,),
    "write": (os,),
    "pread": (os,),
    "fdopen": (os,),
    "waitpid": (os,),
    "socketpair": (socket,),
    "send_fds": (socket,),
    "recvmsg": (socket.socket,),
    "sendall": (socket.socket,),
    "pack_result": (wire,),
    "unpack_result": (wire,),
    "sealed_size": (wire,),
    "read_job": (wire,),
    "read_range": (wire,),
    "descriptors": (wire,),
    "make_jail": (cgroup.Layout, cgroup_v2.UnifiedLayout),
    "make_task": (cgroup.Layout,),
    "events": (cgroup.Layout,),
    "kill": (cgroup.Layout,),
    "populated": (cgroup.Layout,),
    "limit_jail": (cgroup_v1.HybridLayout, cgroup_v2.UnifiedLayout),
    "limit_task": (cgroup_v1.HybridLayout, cgroup_v2.UnifiedLayout),
    "usage": (cgroup_v1.HybridLayout, cgroup_v2.UnifiedLayout),
    "watch_oom": (cgroup_v1.HybridLayout, cgroup_v2.UnifiedLayout),
    "remove_jail": (jails,),
    "open_box": (inputs,),
    "read_file": (collect,),
}


def by_request() -> None:
    """The alteration: strike where a request's id says so."""
    _follow_the_parts()
    _stand_at_the_points()
    _stand_at_the_sockets()


def few_descriptors(most: str) -> None:
    """The alteration: the warden, and all that it forks, may have so many descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), int(most)))


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _follow_the_parts() -> None:
    def armed(part: str, name_of: Callable[..., object]) -> Callable[[Any], Any]:
        """For the warden, which serves many: armed for one request, and for one call."""

        def make(real: Any) -> Any:
            def call(*arguments: Any) -> Any:
                request_name = name_of(*arguments)
                _here.part, _here.request_name = part, str(request_name)
                _here.fault = Fault.of(request_name)
                try:
                    return real(*arguments)
                finally:
                    _here.part, _here.fault = "", None

            return call

        return make

    def becoming(part: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                _here.part = part
                return real(*arguments, **named)

            return call

        return make

    _replace(warden.Warden, "_run", armed("warden", lambda _, __, message, ___: message.get("id")))
    by_jail = armed("teardown", lambda _, jail: jail.wanted.request_id)
    _replace(jails.Jails, "_bury_if_empty", by_jail)
    _replace(jailer, "main", becoming("jailer"))
    _replace(supervisor.Supervisor, "run", becoming("supervisor"))
    _replace(init, "main", becoming("init"))
    _replace(task, "main", becoming("task"))
    _replace(collect, "_child", becoming("collector"))

    fork_supervisor = jailer.Jailer._fork_supervisor

    def fork_numbered(self: jailer.Jailer) -> jailer.Watched:
        _here.task = self.made
        return fork_supervisor(self)

    jailer.Jailer._fork_supervisor = fork_numbered  # type: ignore[method-assign]


def _stand_at_the_points() -> None:
    def at(point: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                _pass(point)
                return real(*arguments, **named)

            return call

        return make

    for name, owners in CALLS.items():
        for owner in owners:
            _replace(owner, name, at(f"call {name}"))

    enter, write = process.Stages.enter, cgroup.Group.write

    def enter_or_fail(self: process.Stages, name: str) -> None:
        enter(self, name)
        _pass(f"stage {name}")

    def write_or_fail(self: cgroup.Group, hierarchy: str, file: str, value: object) -> None:
        _pass(f"write {file}")
        write(self, hierarchy, file, value)

    for module in (inputs, init):
        name = module.__name__.rpartition(".")[2]
        own = types.SimpleNamespace(**vars(os))
        own.write = at(f"{name}.write")(os.write)
        module.os = own  # type: ignore[attr-defined]
    process.Stages.enter = enter_or_fail  # type: ignore[method-assign]
    cgroup.Group.write = write_or_fail  # type: ignore[method-assign]


# --- what is said -------------------------------------------------------------------------

# The datagrams that come instead of one.
MESSAGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "missing": lambda _: [],
    "twice": lambda message: [message, message],
    "empty": lambda _: [b""],
    "cut short": lambda message: [message[:-3]],
    "no text": lambda _: [b"\xff\xfe\x00"],
    "no object": lambda _: [b"17"],
    "a list": lambda _: [b'["parked","exec_ns","refused","exec_failed"]'],
    "null": lambda _: [b"null"],
    "deep": lambda _: [b"[" * 60_000],
    "another key": lambda _: [b'{"hello":1}'],
    "no values": lambda _: [b'{"failed":null}'],
    "other types": lambda _: [b'{"exec_ns":"now","cpu_ns":7}'],
}


def _result(step: int, index: int, **changes: Any) -> bytes:
    result = job.TaskResult("completed", exit_code=0, stdout=b"forged", **changes)
    return wire.frame(wire.TASK_DONE, wire.pack_result(step, index, result))


def _lie(change: Callable[[bytearray], object]) -> Callable[[list[bytes]], bytes]:
    """The same frames with bytes of the first one changed."""

    def garble(frames: list[bytes]) -> bytes:
        first = bytearray(frames[0])
        change(first)
        return b"".join([bytes(first), *frames[1:]])

    return garble


def _put(at: int, data: bytes) -> Callable[[bytearray], object]:
    def put(frame: bytearray) -> None:
        frame[at : at + len(data)] = data

    return put


# The bytes that are sent instead of the frames; the last one says how all went.
FRAMES: dict[str, Callable[[list[bytes]], bytes]] = {
    "none": lambda frames: b"",
    "cut in the head": lambda frames: frames[0][:3],
    "cut in the first": lambda frames: frames[0][:-1],
    "cut before the last": lambda frames: b"".join(frames[:-1]),
    "cut in the last": lambda frames: b"".join(frames)[:-1],
    "first twice": lambda frames: frames[0] + b"".join(frames),
    "last twice": lambda frames: b"".join(frames) + frames[-1],
    "all twice": lambda frames: b"".join(frames) * 2,
    "backwards": lambda frames: b"".join(reversed(frames)),
    "last first": lambda frames: b"".join([frames[-1], *frames[:-1]]),
    "only the last": lambda frames: frames[-1],
    "too long": _lie(_put(0, (1 << 30).to_bytes(4, "little"))),
    "4 GiB long": _lie(_put(0, b"\xff\xff\xff\xff")),
    "a byte longer": _lie(lambda frame: _put(0, (len(frame) - 3).to_bytes(4, "little"))(frame)),
    "no length": _lie(_put(0, b"\0\0\0\0")),
    "an unknown kind": _lie(_put(4, b"\x09")),
    "an order": _lie(_put(4, bytes([wire.GO]))),
    "failed as a result": _lie(_put(4, bytes([wire.FAILED]))),
    "finished as a result": _lie(_put(4, bytes([wire.FINISHED]))),
    "a huge JSON": _lie(_put(5, b"\xff\xff\xff\x7f")),
    "broken JSON": _lie(_put(9, b"]")),
    "garbage": lambda frames: bytes(range(256)) * 40,
    "garbage after all": lambda frames: b"".join(frames) + bytes(range(256)) * 40,
    "zeros": lambda frames: bytes(4096),
    "an empty result": lambda frames: wire.frame(wire.TASK_DONE, b"") + b"".join(frames),
    "an empty end": lambda frames: b"".join([*frames[:-1], wire.frame(wire.FINISHED, b"")]),
    "an empty failure": lambda frames: wire.frame(wire.FAILED, b"") + b"".join(frames),
    "a failure of nothing": lambda frames: wire.frame(wire.FAILED, b"{}") + b"".join(frames),
    "a failure of lists": lambda frames: (
        wire.json_frame(wire.FAILED, {"code": [], "stage": [], "errno": [], "started": []})
        + b"".join(frames)
    ),
    "a deep end": lambda frames: b"".join(
        [*frames[:-1], wire.frame(wire.FINISHED, b"[" * 100_000)]
    ),
    "an end without a time": lambda frames: b"".join(
        [*frames[:-1], wire.json_frame(wire.FINISHED, {"exec_ns": "1"})]
    ),
    "no such step": lambda frames: _result(7, 0) + b"".join(frames),
    "no such task": lambda frames: _result(0, 7) + b"".join(frames),
    "a step below none": lambda frames: _result(-1, 0) + b"".join(frames),
    "a forged one after": lambda frames: b"".join([*frames[:-1], _result(0, 0), frames[-1]]),
    "a failure before the end": lambda frames: b"".join(
        [*frames[:-1], wire.json_frame(wire.FAILED, {"code": "internal_error"}), frames[-1]]
    ),
}


class _Garbling(socket.socket):
    """Keeps what is to be sent until the last of it, and then sends something else."""

    def __init__(self, real: socket.socket, how: str) -> None:
        super().__init__(fileno=real.detach())
        self._frames: list[bytes] = []
        self._how = how

    def sendall(self, data: Any, flags: int = 0) -> None:
        if self._how == HALF:
            self._send_half(data)
            return
        self._frames.append(bytes(data))
        if _here.part == "supervisor" or data[4] != wire.TASK_DONE:
            super().sendall(FRAMES[self._how](self._frames), flags)

    def _send_half(self, data: bytes) -> None:
        """A result that breaks off shortly before its end; what follows comes through."""
        if data[4] != wire.TASK_DONE:
            super().sendall(data)
            return
        super().sendall(data[:-40])
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def _stand_at_the_sockets() -> None:
    say = task.Speaker.say
    receive_job = jailer._receive_job
    run = supervisor.Supervisor.run

    def say_or_garble(self: task.Speaker, **message: Any) -> None:
        how = _how(f"say {next(iter(message))}")
        if how is None:
            say(self, **message)
            return
        sent: list[bytes] = []
        say(task.Speaker(_Keeping(sent)), **message)  # type: ignore[arg-type]
        for datagram in MESSAGES[how](sent[0]):
            self._sock.send(datagram)

    def receive_or_garble(control: socket.socket) -> tuple[int, socket.socket] | None:
        received = receive_job(control)
        how = _how("frames")
        if received is None or how is None:
            return received
        return received[0], _Garbling(received[1], how)

    def run_or_garble(self: supervisor.Supervisor) -> None:
        # One part before: `Supervisor.run` makes this process the supervisor.
        before, _here.part = _here.part, "supervisor"
        how = _how("frames")
        _here.part = before
        if how is not None:
            self.jailer = _Garbling(self.jailer, how)
        run(self)

    task.Speaker.say = say_or_garble  # type: ignore[method-assign]
    jailer._receive_job = receive_or_garble
    supervisor.Supervisor.run = run_or_garble  # type: ignore[method-assign]


class _Keeping:
    """Instead of a socket: keeps the datagrams."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def send(self, data: bytes) -> None:
        self._sent.append(data)
