"""Watches over one task, from before it is known until its result is whole.

runs as      root
parent       the jailer; child: init, later perhaps a collector
namespaces   the jail's mount namespace, the warden's others; it makes the PID namespace
cgroup       the jail's `self`
descriptors  the jailer's socket, the task's group, the task's streams
dies when    the result is sent, or the jailer ends
killed by    the warden, through the cgroup

How a task ended is decided from evidence: the wait status that init reports, the
counters of the task's control group, and whether this process had killed it before.
Where two causes meet, the first one counts.
"""

from __future__ import annotations

import os
import socket

from gaoler.sandbox import init, process, syscalls, task, wire
from gaoler.sandbox.cgroup import Group, Layout
from gaoler.sandbox.job import TaskResult
from gaoler.sandbox.order import Broken, Order
from gaoler.sandbox.run import Parked, Run, failed_at, hear


class Supervisor:
    """One task's life.  Single-threaded; every wait is a poll with a computed end."""

    def __init__(
        self,
        jailer: socket.socket,
        layout: Layout,
        group: Group,
        uid: int,
        sizes: tuple[int, int],
        cpus: float,
        prepared: task.Prepared,
    ) -> None:
        self.jailer = jailer
        self.layout = layout
        self.group = group
        self.uid = uid
        self.sizes = sizes  # of /tmp and /dev/shm
        self.cpus = cpus
        self.prepared = prepared
        self.started = False  # the program was let go: it may have run
        self.stages = process.Stages()

    def run(self) -> None:
        """Park a task, wait for the order, run it, send the result."""
        try:
            self.stages.enter("fork init")
            self._fork_init()
            received = self._receive_order()
            if received is None:
                return
            order, job, pipes = received
            result = self._run(order, job, pipes)
            self.stages.enter("send the result")
            done = wire.frame(wire.TASK_DONE, wire.pack_result(order.step, order.task, result))
        except Broken as broken:
            self._say_failed(broken.stage, broken.errno)
        except OSError as error:
            self._say_failed(f"{self.stages.now}: {error}", error.errno or 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, the jailer is told
            self._say_failed(f"{self.stages.now}: {error!r}", 0)
        else:
            # Not in the `try`: what is said behind half a frame would pass for its end.
            self.jailer.sendall(done)

    def _say_failed(self, stage: str, errno: int) -> None:
        failed = {"stage": stage, "errno": errno, "started": self.started}
        self.jailer.sendall(wire.json_frame(wire.FAILED, failed))

    # --- before the order ---

    def _fork_init(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        report_read, report_write = os.pipe()
        own = os.pidfd_open(os.getpid())
        syscalls.unshare(syscalls.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            keep = [theirs.fileno(), report_write, *self.group.folders.values()]
            process.close_all_but(keep)
            process.in_child(
                lambda: init.main(
                    report_write, theirs, self.group, self.uid, *self.sizes, self.prepared
                ),
                lambda _: None,
            )
        # Back to our own: nothing can be forked into a PID namespace whose init has ended.
        syscalls.setns(own, syscalls.CLONE_NEWPID)
        os.close(own)
        theirs.close()
        os.close(report_write)
        self.sock = ours
        self.report = report_read
        self.init_pid = pid
        self.init_fd = os.pidfd_open(pid)

    def _receive_order(self) -> tuple[Order, int, list[int]] | None:
        """The jailer's order with the job and, for piped streams, their descriptors."""
        self.stages.enter("park the task")
        self._receive_counts()
        self._expect_parked()
        self.stages.enter("receive the order")
        data, ancillary, _, _ = self.jailer.recvmsg(
            task.LONGEST_MESSAGE, socket.CMSG_SPACE(3 * 4), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return None
        job, *pipes = wire.descriptors(ancillary)
        return Order.load(data), job, pipes

    def _receive_counts(self) -> None:
        """Init's first word: descriptors of its network namespace's counts."""
        data, ancillary, _, _ = self.sock.recvmsg(
            task.LONGEST_MESSAGE, socket.CMSG_SPACE(2 * 4), socket.MSG_CMSG_CLOEXEC
        )
        self.counts = tuple(wire.descriptors(ancillary))
        if not self.counts:
            raise failed_at(self.stages.now, wire.read_json(data) if data else None)

    def _expect_parked(self) -> None:
        message = hear(self.sock)
        if message is None or "parked" not in message:
            raise failed_at(self.stages.now, message)

    # --- the run ---

    def _run(self, order: Order, job: int, pipes: list[int]) -> TaskResult:
        self.stages.enter("limit the task")
        self.layout.limit_task(self.group, order.limits, self.cpus)
        parked = Parked(self.sock, self.report, self.init_pid, self.init_fd, self.counts)
        run = Run(parked, self.group, self.layout, order, job, self.uid)
        self.started = True
        self.stages.enter("start the task")
        run.start(pipes)
        self.stages.enter("watch over the task")
        run.watch_over()
        self.stages.enter("make the result")
        return run.result()
