"""A task under way: its streams, its limits, and what is seen of its end.

The supervisor's second half.  Limits are watched by events and by deadlines computed from
what was used so far; nothing ticks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from gaoler.sandbox import collect, init, namespaces, process, task, wire
from gaoler.sandbox.cgroup import Group, Layout, Usage
from gaoler.sandbox.job import Collected, Limits, Stats, TaskResult
from gaoler.sandbox.order import Broken, Order
from gaoler.sandbox.outcome import Ending, decide

_CHUNK = 64 << 10
# How long the OOM killer may take to count a kill after it has announced it.
_OOM_SETTLES_NS = 50_000_000
_OOM_LOOK_NS = 1_000_000
# Connections that were not accepted are memory of nobody's, so they are counted; ten times a
# second, which bounds what can be made between two looks.
_NETWORK_LOOK_NS = 100_000_000
MOST_TCP_SOCKETS = 2048


@dataclass(frozen=True, slots=True)
class Parked:
    """The two processes of a task that waits: its init, and what will become the program."""

    sock: socket.socket  # to the task's process, until it execs
    report: int  # from init, when the first process has ended
    init_pid: int
    init_fd: int
    counts: tuple[int, ...]  # of the sockets in the task's network namespace


def hear(sock: socket.socket) -> dict[str, Any] | None:
    """The next message of the task's process; None when its end is closed.

    Raises ProtocolError for what is none.
    """
    data = sock.recv(task.LONGEST_MESSAGE)
    return wire.read_json(data) if data else None


def failed_at(stage: str, message: dict[str, Any] | None) -> Broken:
    if message and "failed" in message:
        return Broken(f"{message['failed']}: {message['text']}", message["errno"])
    return Broken(stage)


@dataclass(slots=True)
class Stream:
    """One of the task's outputs: what was kept, and whether there was more."""

    descriptor: int
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    overflowed: bool = False
    open: bool = True

    def drain(self) -> None:
        """Read what is there now; keep no more than the limit."""
        while self.open:
            try:
                chunk = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self.close()
                return
            room = self.limit - len(self.kept)
            self.kept += chunk[:room]
            if len(chunk) > room:
                self.overflowed = True
                return

    def close(self) -> None:
        if self.open:
            os.close(self.descriptor)
            self.open = False


class Run:
    """A task under way: its streams, its deadlines, and what was seen of its end."""

    def __init__(
        self, parked: Parked, group: Group, layout: Layout, order: Order, job: int, uid: int
    ) -> None:
        self.parked = parked
        self.group = group
        self.layout = layout
        self.order = order
        self.job = job
        self.uid = uid
        self.watch = layout.watch_oom(group)
        self.parallelism = len(os.sched_getaffinity(0))
        self.ending = Ending()
        self.exec_ns = 0
        self.cpu_before_exec = (0, 0)
        self.deadline_ns: int | None = None
        self.cpu_look_ns: int | None = None
        self.oom_look_ns: int | None = None
        self.network_look_ns: int | None = None
        self.oom_give_up_ns = 0
        self.heard_end = False
        self.stdin_write: int | None = None
        self.stdin_at = order.stdin.offset
        self.stdout: Stream | None = None
        self.stderr: Stream | None = None

    def start(self, pipes: list[int]) -> None:
        """Make the streams and send the task its order and its ends of them."""
        order, given = self.order, list(pipes)
        theirs = []
        if order.stdin_piped:
            theirs.append(given.pop(0))
        else:
            read_end, self.stdin_write = self._pipe()
            os.set_blocking(self.stdin_write, False)
            theirs.append(read_end)
        limit = min(order.limits.output_bytes, order.share_bytes)
        if order.stdout_piped:
            theirs.append(given.pop(0))
        else:
            theirs.append(self._output("stdout", limit))
        theirs.append(self._output("stderr", limit))
        message = {
            "section": [order.section.offset, order.section.length],
            "limits": [getattr(order.limits, name) for name in Limits.__slots__],
            "profile": order.profile,
        }
        try:
            socket.send_fds(self.parked.sock, [json.dumps(message).encode()], [self.job, *theirs])
        except OSError:
            pass  # it has died; its report says how
        for descriptor in theirs:
            os.close(descriptor)

    def _pipe(self) -> tuple[int, int]:
        """A pipe that the task's user owns, or it could not open /dev/stdout by name."""
        ends = os.pipe()
        os.fchown(ends[0], self.uid, self.uid)
        return ends

    def _output(self, name: str, limit: int) -> int:
        read_end, write_end = self._pipe()
        os.set_blocking(read_end, False)
        setattr(self, name, Stream(read_end, limit))
        return write_end

    # --- watching ---

    def watch_over(self) -> None:
        """Return when every process of the task is gone and its streams are drained."""
        self._feed()
        poller = select.poll()
        poller.register(self.parked.report, select.POLLIN)
        poller.register(self.parked.init_fd, select.POLLIN)
        poller.register(self.parked.sock, select.POLLIN)
        poller.register(self.watch.descriptor, self.watch.mask)
        for stream in self._streams():
            poller.register(stream.descriptor, select.POLLIN)
        if self.stdin_write is not None:
            poller.register(self.stdin_write, select.POLLOUT)
        while True:
            ready = dict(poller.poll(self._timeout_ms()))
            if self.parked.init_fd in ready:
                break
            self._handle(ready, poller)
            self._check_limits(time.monotonic_ns())
        self._finish()

    def _streams(self) -> list[Stream]:
        return [s for s in (self.stdout, self.stderr) if s is not None and s.open]

    def _handle(self, ready: dict[int, int], poller: select.poll) -> None:
        for stream in self._streams():
            if stream.descriptor in ready:
                stream.drain()
                if stream.overflowed:
                    self._kill("output")
                if not stream.open or stream.overflowed:
                    poller.unregister(stream.descriptor)
        if self.stdin_write is not None and self.stdin_write in ready:
            descriptor = self.stdin_write
            if self._feed():
                poller.unregister(descriptor)
        if self.parked.sock.fileno() in ready and not self._hear():
            poller.unregister(self.parked.sock)
        if self.watch.descriptor in ready:
            self.watch.drain()
            self.oom_look_ns = time.monotonic_ns()
            self.oom_give_up_ns = self.oom_look_ns + _OOM_SETTLES_NS
        if self.parked.report in ready:
            self._hear_report()
            poller.unregister(self.parked.report)

    def _feed(self) -> bool:
        """Write what stdin takes without waiting; True when it is closed.

        Copied, not spliced: a task must not hold pages of the job.
        """
        if self.stdin_write is None:
            return True
        end = self.order.stdin.offset + self.order.stdin.length
        try:
            while self.stdin_at < end:
                chunk = os.pread(self.job, min(_CHUNK, end - self.stdin_at), self.stdin_at)
                self.stdin_at += os.write(self.stdin_write, chunk)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass  # the program reads no more: its own business
        os.close(self.stdin_write)
        self.stdin_write = None
        return True

    def _hear(self) -> bool:
        """One message of the task's process before exec; False when the socket is closed."""
        message = hear(self.parked.sock)
        if message is None:
            return False
        if "exec_ns" in message:
            self.exec_ns = message["exec_ns"]
            self.cpu_before_exec = tuple(message["cpu_ns"])
            self.deadline_ns = self.exec_ns + self.order.wall_ms * 1_000_000
            self.cpu_look_ns = self.exec_ns
            self.network_look_ns = self.exec_ns + _NETWORK_LOOK_NS
        elif "refused" in message:
            self.ending.refused = message["refused"]
        elif "exec_failed" in message:
            self.ending.exec_failed = message["exec_failed"]
        else:
            raise failed_at("task", message)
        return True

    def _hear_report(self) -> None:
        data = os.read(self.parked.report, init.REPORT.size)
        if len(data) == init.REPORT.size:
            status, ended_ns = init.REPORT.unpack(data)
            self.ending.status = status
            self.ending.ended_ns = ended_ns
        self.heard_end = True

    def _timeout_ms(self) -> float | None:
        if self.heard_end:
            return None  # init is about to end
        looks = (self.deadline_ns, self.cpu_look_ns, self.oom_look_ns, self.network_look_ns)
        times = [t for t in looks if t is not None]
        if not times or self.ending.killed_for is not None:
            return None
        # Rounded up, or the last millisecond would be spent spinning.
        return max(0, (min(times) - time.monotonic_ns() + 999_999) // 1_000_000)

    def _check_limits(self, now: int) -> None:
        if self.heard_end or self.ending.killed_for is not None:
            return
        if self.oom_look_ns is not None and now >= self.oom_look_ns:
            self._look_for_oom(now)
        if self.network_look_ns is not None and now >= self.network_look_ns:
            self._look_at_network(now)
        if self.deadline_ns is not None and now >= self.deadline_ns:
            self._kill("wall")
        elif self.cpu_look_ns is not None and now >= self.cpu_look_ns:
            self._look_at_cpu(now)

    def _look_for_oom(self, now: int) -> None:
        """v1 kills one process of the group; the rest must not go on without it."""
        if self.usage().oom_kills:
            self._kill("memory")
        self.oom_look_ns = now + _OOM_LOOK_NS if now < self.oom_give_up_ns else None

    def _look_at_network(self, now: int) -> None:
        if namespaces.tcp_sockets(self.parked.counts) > MOST_TCP_SOCKETS:
            self._kill("memory")
        self.network_look_ns = now + _NETWORK_LOOK_NS

    def _look_at_cpu(self, now: int) -> None:
        """Kill, or look again at the earliest moment at which the limit could be met."""
        left = self.order.limits.cpu_ms * 1_000_000 - self._cpu_ns(self.usage())
        if left <= 0:
            self._kill("cpu")
            return
        self.cpu_look_ns = now + max(1_000_000, int(left / self.parallelism))

    def _kill(self, cause: str) -> None:
        if self.ending.killed_for is None and not self.heard_end:
            self.ending.killed_for = cause
        # Everything in the PID namespace dies with its init.
        signal.pidfd_send_signal(self.parked.init_fd, signal.SIGKILL)

    # --- the end ---

    def _finish(self) -> None:
        """Init is gone, and with it every process of the task."""
        while self.parked.sock in _ready_now(self.parked.sock) and self._hear():
            pass
        if not self.heard_end:
            self._hear_report()
        process.wait_for(self.parked.init_pid)
        if not self.ending.ended_ns:
            self.ending.ended_ns = time.monotonic_ns()
        for stream in self._streams():
            stream.drain()
            stream.close()
        if self.stdin_write is not None:
            os.close(self.stdin_write)
            self.stdin_write = None
        self.watch.close()

    def usage(self) -> Usage:
        return self.layout.usage(self.group)

    def _cpu_ns(self, usage: Usage) -> int:
        return max(0, usage.cpu_ns - sum(self.cpu_before_exec))

    def result(self) -> TaskResult:
        """Decide the outcome, collect the files."""
        ending, usage = self.ending, self.usage()
        ending.oom_kills = usage.oom_kills
        ending.oom_by_own_limit = usage.oom_by_own_limit
        ending.overflowed = any(s.overflowed for s in (self.stdout, self.stderr) if s)
        ending.cpu_over = self._cpu_ns(usage) > self.order.limits.cpu_ms * 1_000_000
        ending.wall_over = bool(self.deadline_ns) and ending.ended_ns > (self.deadline_ns or 0)
        ending.started = bool(self.exec_ns)
        decided = decide(ending)
        if decided is None:
            raise Broken(ending.fault())
        kept_out, kept_err = self._kept()
        left = max(0, self.order.share_bytes - len(kept_out) - len(kept_err))
        return TaskResult(
            outcome=decided.outcome,
            reason=decided.reason,
            exit_code=decided.exit_code,
            signal=decided.signal,
            timed_out=decided.outcome == "timed_out",
            stdout=kept_out,
            stderr=kept_err,
            stdout_truncated=bool(self.stdout and self.stdout.overflowed)
            or len(kept_out) < self._length(self.stdout),
            stderr_truncated=bool(self.stderr and self.stderr.overflowed)
            or len(kept_err) < self._length(self.stderr),
            files=self._collect(left) if decided.outcome != "setup_failed" else (),
            stats=self._stats(usage),
            ended_ns=ending.ended_ns,
            cut_by_budget=decided.reason == "wall"
            and self.order.wall_ms < self.order.limits.wall_ms,
        )

    @staticmethod
    def _length(stream: Stream | None) -> int:
        return len(stream.kept) if stream else 0

    def _kept(self) -> tuple[bytes, bytes]:
        """Both streams, together within the task's share of the request's output."""
        out = bytes(self.stdout.kept) if self.stdout else b""
        err = bytes(self.stderr.kept) if self.stderr else b""
        return out, err[: max(0, self.order.share_bytes - len(out))]

    def _collect(self, left: int) -> tuple[Collected, ...]:
        if not self.order.collect.length:
            return ()
        return collect.collect(self.job, self.order.collect, self.uid, left)

    def _stats(self, usage: Usage) -> Stats:
        # The kernel splits a group's time and a process's into user and system by samples of
        # their own, so only the sums can be subtracted; the split is the group's, as far as it
        # goes.
        used = self._cpu_ns(usage)
        user = min(used, max(0, usage.cpu_user_ns - self.cpu_before_exec[0]))
        return Stats(
            wall_ms=_ms(self.ending.ended_ns - self.exec_ns) if self.exec_ns else 0,
            cpu_user_ms=_ms(user),
            cpu_system_ms=_ms(used) - _ms(user),
            memory_peak_bytes=usage.memory_peak_bytes,
            pids_peak=usage.pids_peak,
            oom_kills=usage.oom_kills,
            pids_limit_hits=usage.pids_limit_hits,
        )


def _ms(nanoseconds: int) -> int:
    return round(nanoseconds / 1_000_000)


def _ready_now(sock: socket.socket) -> list[socket.socket]:
    return select.select([sock], [], [], 0)[0]
