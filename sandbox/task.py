"""The process that becomes the task.

runs as      the jail's leased UID, 1000 inside; no capability, no_new_privs
parent       init (PID 1 of the task's PID namespace)
namespaces   all of its own, PID and user included; the clock's is the host's
cgroup       the task's leaf
descriptors  the supervisor's socket until exec; then 0, 1, 2 and no other
dies when    its PID namespace ends, that is with init
killed by    the supervisor, through init; the warden, through the cgroup

It is forked before the job is known, locks itself down as far as a runtime allows, and
parks.  Told to go, it lays out its own input files, with the rights of the program that
will read them, and execs.  Everything after the lock-down must be allowed by the seccomp
profile: recvmsg, pread, openat2, prlimit64, close_range, execve.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from gaoler.sandbox import (
    capabilities,
    inputs,
    landlock,
    mounts,
    namespaces,
    process,
    rlimits,
    seccomp,
    syscalls,
    wire,
)
from gaoler.sandbox.cgroup import Group
from gaoler.sandbox.job import Limits

# exec's errors that mean "there is no such program"; all others mean "it cannot be run".
_NOT_FOUND = frozenset({errno.ENOENT, errno.ENOTDIR})
_SEARCH_GOES_ON = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC})

LONGEST_MESSAGE = 64 << 10


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the warden found out once, for every task."""

    landlock_abi: int
    programs: seccomp.Programs
    toolchain: tuple[str, ...]  # host folders, see `mounts.toolchain`
    oom_protected: bool


class Speaker:
    """The task's end of the supervisor's socket: one JSON message a datagram."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @property
    def descriptor(self) -> int:
        return self._sock.fileno()

    def say(self, **message: Any) -> None:
        self._sock.send(json.dumps(message).encode())

    def fail(self, stage: str, error: BaseException) -> None:
        self.say(failed=stage, errno=process.errno_of(error), text=str(error)[:200])


def main(sock: socket.socket, group: Group, uid: int, prepared: Prepared) -> None:
    """Park, be told, become the program.  Returns only where exec failed."""
    stages = process.Stages()
    speaker = Speaker(sock)
    try:
        stages.enter("join cgroup")
        group.join()
        joined = _cpu_times()
        lock_down(sock, group, uid, prepared, stages)
        stages.enter("park")
        speaker.say(parked=True)
        order, descriptors = _receive(sock)
    except BaseException as error:
        speaker.fail(stages.now, error)
        raise
    _go(speaker, order, descriptors, joined, prepared)


def lock_down(
    sock: socket.socket, group: Group, uid: int, prepared: Prepared, stages: process.Stages
) -> None:
    """Give up everything, in the only order that the kernel lets through."""
    stages.enter("unshare cgroup namespace")
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)  # after joining: its root is the task's group
    group.close()
    stages.enter("new session")
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Made while nothing on the way to the folders can be closed to us.
    folders = (path for path in prepared.toolchain if os.path.isdir(path))
    ruleset = landlock.make_ruleset(
        prepared.landlock_abi, (*mounts.READABLE, *folders), mounts.WRITABLE
    )
    process.close_all_but([sock.fileno(), ruleset])
    if prepared.oom_protected:
        process.unprotect_from_oom()
    stages.enter("change credentials")
    os.setgroups([])  # before setresuid, which takes the right to
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # The change made us undumpable, and our own /proc files root's.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    stages.enter("enter user namespace")
    namespaces.enter_user_namespace(uid, uid)
    stages.enter("drop capabilities")
    capabilities.drop_all()
    stages.enter("no new privileges")
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    stages.enter("landlock")
    syscalls.landlock_restrict_self(ruleset)
    os.close(ruleset)
    os.umask(0o022)
    stages.enter("seccomp")
    syscalls.seccomp_load(prepared.programs.parked)


def _receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The supervisor's order and its descriptors: the job, then stdin, stdout, stderr."""
    data, ancillary, _, _ = sock.recvmsg(
        LONGEST_MESSAGE, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
    )
    if not data:
        os._exit(0)  # never needed: the request ended first
    return json.loads(data), wire.descriptors(ancillary)


def _go(
    speaker: Speaker,
    order: dict[str, Any],
    descriptors: list[int],
    joined: tuple[float, float],
    prepared: Prepared,
) -> None:
    job, *streams = descriptors
    stages = process.Stages()
    try:
        stages.enter("read the task")
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
            os.close(descriptor)
        section = json.loads(wire.read_range(job, wire.Range(*order["section"])))
        stages.enter("write inputs")
        inputs.write_all(job, section["files"])
        stages.enter("enter working folder")
        inputs.enter_folder(section["working_dir"])
        stages.enter("set limits")
        # Whatever else came: the program gets 0, 1, 2 and nothing more.
        process.close_all_but([speaker.descriptor])
        rlimits.apply(Limits(*order["limits"]))
        process.reset_signals()
        stages.enter("load the profile")
        for program in prepared.programs.final[order["profile"]]:
            syscalls.seccomp_load(program)
    except inputs.InputRefused as refusal:
        speaker.say(refused=refusal.reason)
        return
    except BaseException as error:  # noqa: BLE001 - whatever it is, the supervisor is told
        speaker.fail(stages.now, error)
        return
    _exec(speaker, section, joined)


def _exec(speaker: Speaker, section: dict[str, Any], joined: tuple[float, float]) -> None:
    """Become the program.  The socket closes at exec: that is how success is told."""
    argv = [text.encode() for text in (section["cmd"], *section["args"])]
    env = {name.encode(): value.encode() for name, value in section["env"].items()}
    user, system = _cpu_times()
    speaker.say(
        exec_ns=time.monotonic_ns(),
        # What this process used in the task's group before the program began.
        cpu_ns=[round((user - joined[0]) * 1e9), round((system - joined[1]) * 1e9)],
    )
    try:
        exec_by_path(argv, env)
    except OSError as error:
        found = error.errno not in _NOT_FOUND
        try:
            speaker.say(exec_failed="not_executable" if found else "command_not_found")
        finally:
            # Were that word lost, our end must not pass for that of a program that did well.
            os._exit(126 if found else 127)
    except BaseException as error:
        speaker.fail("exec", error)
        raise


def exec_by_path(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """execve with the command looked up in the environment's own PATH.

    A folder of PATH that is not absolute is passed over, the empty one too: a bare name
    never means a file of the current folder.  Raises the OSError that says most.
    """
    command = argv[0]
    if b"/" in command:
        os.execve(command, argv, env)
    denied: OSError | None = None
    for folder in env.get(b"PATH", b"").split(b":"):
        if not folder.startswith(b"/"):
            continue
        try:
            os.execve(folder + b"/" + command, argv, env)
        except OSError as error:
            if error.errno not in _SEARCH_GOES_ON:
                raise
            if error.errno not in _NOT_FOUND:
                denied = error
    raise denied or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _cpu_times() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
