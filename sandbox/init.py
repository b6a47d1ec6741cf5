"""PID 1 of a task's PID namespace.

runs as      root without any capability once the task is parked
parent       the supervisor; only child: the process that becomes the task
namespaces   mount, UTS, IPC, network, PID of the task; the host's user namespace
cgroup       the jail's `self`
descriptors  the report pipe to the supervisor, nothing else once the task is parked
dies when    the task's first process ends, or the supervisor does
killed by    the supervisor, by pidfd; with it the kernel kills everything in the namespace

Its death is the surest end of a task: no process can leave a PID namespace, and the
kernel does not let PID 1 be reaped before all others are gone.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time

from gaoler.sandbox import capabilities, mounts, namespaces, process, syscalls, task
from gaoler.sandbox.cgroup import Group

# What init says when its first child ended: wait status, CLOCK_MONOTONIC in ns.
REPORT = struct.Struct("<iq")

# Inodes of /tmp and /dev/shm.
_INODES = 16_384


def main(
    report: int,
    sock: socket.socket,
    group: Group,
    uid: int,
    tmp_bytes: int,
    shm_bytes: int,
    prepared: task.Prepared,
) -> None:
    """Set the task's namespaces up, fork it, wait for its end, say how it ended.

    The caller forked us into a new PID namespace, where getppid() is 0 and says nothing:
    that the supervisor lives is seen on the report pipe.
    """
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    speaker = task.Speaker(sock)
    stages = process.Stages()
    try:
        _prepare(uid, tmp_bytes, shm_bytes, stages)
        stages.enter("hand over the counts")
        _hand_over_counts(sock)
        stages.enter("fork the task")
        pid = os.fork()
        if pid == 0:
            os.close(report)
            process.in_child(lambda: task.main(sock, group, uid, prepared), lambda _: None)
    except BaseException as error:
        speaker.fail(stages.now, error)
        raise
    sock.close()
    group.close()
    process.close_all_but([report])
    _give_up_rights()
    _wait_for(pid, report)


def _prepare(uid: int, tmp_bytes: int, shm_bytes: int, stages: process.Stages) -> None:
    stages.enter("unshare task namespaces")
    syscalls.unshare(namespaces.TASK)
    stages.enter("mount task file systems")
    mounts.mount_task(uid, tmp_bytes, shm_bytes, _INODES)
    stages.enter("raise loopback")
    namespaces.raise_loopback()
    stages.enter("limit the network")
    namespaces.limit_network()
    stages.enter("mask /proc")
    mounts.mask_proc()


def _hand_over_counts(sock: socket.socket) -> None:
    """The supervisor, which no mount shows this /proc, gets what it has to look at."""
    counts = namespaces.open_counts()
    socket.send_fds(sock, [b"{}"], counts)
    for descriptor in counts:
        os.close(descriptor)


def _give_up_rights() -> None:
    """Reaping needs none.  Dropping capabilities keeps the parent-death signal."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    os.setgroups([])
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    capabilities.drop_all()


def _wait_for(first: int, report: int) -> None:
    """Reap whatever ends; when it is the first process, report and end too."""
    while True:
        pid, status = os.wait()
        if pid == first:
            os.write(report, REPORT.pack(status, time.monotonic_ns()))
            return
