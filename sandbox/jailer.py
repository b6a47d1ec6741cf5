"""One request's jailer: builds the jail, runs the steps in it, sends the results.

runs as      root
parent       the warden; children: a supervisor for each task
namespaces   a mount namespace with the jail's root; UTS, IPC and network are the warden's
             empty ones
cgroup       the jail's `self`
descriptors  the warden's socket, the request's socket, the job, the jail's group
dies when    the last result is sent, or the warden ends
killed by    the warden alone: cancel, hard deadline, or anything odd

The jail is built before the job is known; so are the first supervisor and the process
that will become the first task.  The supervisors of a step are forked while the step
before it runs, so that nobody waits for a control group.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gaoler.sandbox import mounts, process, syscalls, task, wire
from gaoler.sandbox.cgroup import SELF, Group, Layout
from gaoler.sandbox.job import TaskResult
from gaoler.sandbox.order import Order
from gaoler.sandbox.spec import WardenSpec
from gaoler.sandbox.supervisor import Supervisor

_MS = 1_000_000
_BOX_BEFORE_JOB = 1 << 20
_NOTICED_WITHIN_NS = 20 * _MS


@dataclass(slots=True)
class Watched:
    """A supervisor as the jailer sees it."""

    sock: socket.socket
    pid: int
    group: str
    decoder: wire.Decoder
    at: tuple[int, int] = (-1, -1)  # step and task, once it has its order


class RequestBroken(Exception):
    """The request cannot go on: our fault.  `stage` is for the log."""

    def __init__(self, stage: str, errno: int = 0) -> None:
        super().__init__(stage)
        self.stage = stage
        self.errno = errno


class Jailer:
    """Single-threaded; reads from its supervisors, writes to the request's socket."""

    def __init__(
        self, spec: WardenSpec, layout: Layout, jail: Group, uid: int, prepared: task.Prepared
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.jail = jail
        self.uid = uid
        self.prepared = prepared
        self.spares: list[Watched] = []
        self.made = 0
        self.exec_ns = 0
        self.output_left = 0
        self.let_go = 0  # tasks whose program may have begun
        self.stages = process.Stages()

    # --- before the job ---

    def build(self) -> None:
        """Everything that does not depend on the job."""
        stages = self.stages
        stages.enter("join cgroup")
        own = self.jail.child(SELF)
        own.join()
        own.close()
        stages.enter("unshare mount namespace")
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.join_new_session_keyring()
        stages.enter("enter root")
        mounts.enter_root(
            self.spec.root_dir,
            self.prepared.toolchain,
            self.uid,
            _BOX_BEFORE_JOB,
            self.spec.workspace_inodes,
        )
        os.umask(0)
        stages.enter("fork supervisor")
        self.spares.append(self._fork_supervisor())

    def _fork_supervisor(self) -> Watched:
        """A supervisor with a process parked in the control group of the next task."""
        name = f"task-{self.made}"
        group = self.layout.make_task(self.jail, name)
        self.made += 1
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            process.close_all_but([theirs.fileno(), *group.folders.values()])
            process.bind_to_parent(parent)
            supervisor = Supervisor(
                theirs,
                self.layout,
                group,
                self.uid,
                (self.spec.tmp_bytes, self.spec.shm_bytes),
                self.spec.cpus_per_slot,
                self.prepared,
            )
            process.in_child(supervisor.run, lambda _: None)
        theirs.close()
        group.close()
        # A result holds the task's output and the paths that were to be collected.
        longest = self.spec.output_bytes_max + self.spec.job_bytes_max + (1 << 20)
        return Watched(ours, pid, name, wire.Decoder(longest))

    # --- the job ---

    def run(self, job: int, request: socket.socket) -> None:
        """Run a job and say everything on the request's socket."""
        self.job = job
        self.request = request
        try:
            self.stages.enter("read the job")
            header = self._read_header()
            self.stages.enter("resize the workspace")
            mounts.resize_box(header.workspace_bytes, self.spec.workspace_inodes)
            self.output_left = header.output_bytes
            self.stages.enter("run the steps")
            self._run_steps(header)
            self.stages.enter("finish")
            request.sendall(wire.json_frame(wire.FINISHED, {"exec_ns": self.exec_ns}))
        except RequestBroken as broken:
            self._say_failed(broken.stage, broken.errno)
        except (OSError, wire.ProtocolError) as error:
            self._say_failed(f"{self.stages.now}: {error}", process.errno_of(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker is told
            self._say_failed(f"{self.stages.now}: {error!r}", 0)

    def _say_failed(self, stage: str, errno: int) -> None:
        code = "internal_error" if self.let_go else "sandbox_setup_failed"
        failed = {"code": code, "stage": stage, "errno": errno}
        self.request.sendall(wire.json_frame(wire.FAILED, failed))

    def _read_header(self) -> wire.JobHeader:
        """The job's header, with every number held against the warden's maxima."""
        header = wire.read_job(self.job)
        spec = self.spec
        fault = (
            # A tmpfs of size 0 is one without end.
            not 0 < header.workspace_bytes <= spec.workspace_bytes_max
            or header.output_bytes > spec.output_bytes_max
            or header.deadline_ns > time.monotonic_ns() + spec.ceiling_ms_max * _MS
            or not 1 <= len(header.steps) <= spec.steps_max
            or any(len(step.tasks) > spec.width_max for step in header.steps)
            or any(not self._within(t) for step in header.steps for t in step.tasks)
        )
        if fault:
            raise RequestBroken("the job asks for more than the warden's maxima")
        return header

    def _within(self, header: wire.TaskHeader) -> bool:
        most = self.spec.limits_max
        within = all(getattr(header.limits, name) <= getattr(most, name) for name in most.__slots__)
        return within and header.profile in self.spec.profiles

    def _run_steps(self, header: wire.JobHeader) -> None:
        failed = False
        for number, step in enumerate(header.steps):
            if failed and header.stop_on_failure:
                results = [_not_started("earlier_step_failed")] * len(step.tasks)
                for index, result in enumerate(results):
                    self._send(number, index, result)
                continue
            following = header.steps[number + 1 : number + 2]
            results = self._run_step(number, step, header.deadline_ns, following)
            failed = failed or not all(result.succeeded for result in results)

    def _run_step(
        self,
        number: int,
        step: wire.StepHeader,
        deadline_ns: int,
        following: tuple[wire.StepHeader, ...],
    ) -> list[TaskResult]:
        walls = self._walls(step, deadline_ns)
        running: dict[int, Watched] = {}
        self._grow_spares(sum(1 for wall in walls if wall is not None))
        ends = self._make_pipes(step, walls)
        results: list[TaskResult | None] = [None] * len(step.tasks)
        share = self.output_left // len(step.tasks)
        for index, (header, wall) in enumerate(zip(step.tasks, walls, strict=True)):
            if wall is None:
                results[index] = _not_started("budget", timed_out=True)
                self._send(number, index, results[index])
                continue
            running[index] = self.spares.pop(0)
            self._order(running[index], number, index, header, wall, share, ends.get(index, {}))
        for descriptors in ends.values():
            for descriptor in descriptors.values():
                os.close(descriptor)
        # While these run: those who will run next.
        self._grow_spares(sum(len(s.tasks) for s in following))
        self._gather(number, running, results, step.pipes)
        return [result for result in results if result is not None]

    def _walls(self, step: wire.StepHeader, deadline_ns: int) -> list[int | None]:
        """How long each task may take; None for one whose promised time no longer fits.

        Tasks that are piped together start together or not at all.
        """
        left_ms = (deadline_ns - time.monotonic_ns()) // _MS
        walls: list[int | None] = []
        for header in step.tasks:
            wanted = header.limits.wall_ms
            if header.wall_promised:
                walls.append(wanted if wanted <= left_ms else None)
            else:
                walls.append(min(wanted, left_ms) if left_ms > 0 else None)
        if step.pipes and None in walls:
            return [None] * len(walls)
        return walls

    def _grow_spares(self, wanted: int) -> None:
        while len(self.spares) < wanted:
            self.spares.append(self._fork_supervisor())

    def _make_pipes(
        self, step: wire.StepHeader, walls: list[int | None]
    ) -> dict[int, dict[str, int]]:
        """For each task the ends of its pipes: {"stdin": descriptor, "stdout": descriptor}."""
        ends: dict[int, dict[str, int]] = {}
        if None in walls:
            return ends
        for source, target in step.pipes:
            read_end, write_end = os.pipe()
            os.fchown(read_end, self.uid, self.uid)
            ends.setdefault(source, {})["stdout"] = write_end
            ends.setdefault(target, {})["stdin"] = read_end
        return ends

    def _order(
        self,
        watched: Watched,
        step: int,
        index: int,
        header: wire.TaskHeader,
        wall_ms: int,
        share: int,
        ends: dict[str, int],
    ) -> None:
        order = Order(
            step=step,
            task=index,
            section=header.section,
            stdin=header.stdin,
            collect=header.collect,
            profile=header.profile,
            limits=header.limits,
            wall_ms=wall_ms,
            share_bytes=share,
            stdin_piped="stdin" in ends,
            stdout_piped="stdout" in ends,
        )
        watched.at = (step, index)
        self.exec_ns = self.exec_ns or time.monotonic_ns()
        self.let_go += 1
        descriptors = [self.job] + [ends[name] for name in ("stdin", "stdout") if name in ends]
        try:
            socket.send_fds(watched.sock, [order.dump()], descriptors)
        except OSError:
            pass  # it has died: its socket says so when it is read

    # --- results ---

    def _gather(
        self,
        number: int,
        running: dict[int, Watched],
        results: list[TaskResult | None],
        pipes: tuple[tuple[int, int], ...],
    ) -> None:
        """Wait for every task of the step.  A result is sent as it comes; those of tasks
        that are piped together wait for each other, to say who left first."""
        piped = {end for pipe in pipes for end in pipe}
        held: dict[int, TaskResult] = {}
        for index, result in self._each_result(running):
            results[index] = result
            if index in piped:
                held[index] = result
            else:
                self._send(number, index, result)
        first = _left_first(held, {target for _, target in pipes})
        for index, result in held.items():
            if index == first and result.reason is None:
                result = replace(result, reason="left_first")
            results[index] = result
            self._send(number, index, result)

    def _each_result(self, running: dict[int, Watched]) -> Iterator[tuple[int, TaskResult]]:
        """(index, result) of each running task, in the order in which they end."""
        poller = select.poll()
        by_descriptor = {}
        for index, watched in running.items():
            poller.register(watched.sock, select.POLLIN)
            by_descriptor[watched.sock.fileno()] = index
        while by_descriptor:
            for descriptor, _ in poller.poll():
                watched = running[by_descriptor[descriptor]]
                result = self._hear(watched)
                if result is not None:
                    poller.unregister(descriptor)
                    yield by_descriptor.pop(descriptor), result
                    self._retire(watched)

    def _hear(self, watched: Watched) -> TaskResult | None:
        """A supervisor's result once it is whole.  Raises RequestBroken where none will come."""
        try:
            data = watched.sock.recv(1 << 20)
        except ConnectionResetError:  # its order unread
            data = b""
        if not data:
            raise RequestBroken("a supervisor died")
        for kind, payload in watched.decoder.feed(data):
            if kind == wire.TASK_DONE:
                step, index, result = wire.unpack_result(payload)
                if (step, index) != watched.at:
                    raise RequestBroken(f"a result of task {step}/{index}")
                return result
            failed = wire.read_json(payload)
            if failed["started"] is False:
                self.let_go -= 1
            raise RequestBroken(failed["stage"], failed["errno"])
        return None

    def _retire(self, watched: Watched) -> None:
        watched.sock.close()
        process.wait_for(watched.pid)
        try:
            self.jail.remove_child(watched.group)
        except OSError:
            pass  # the teardown removes it with the rest

    def _send(self, step: int, index: int, result: TaskResult | None) -> None:
        assert result is not None
        self.output_left -= len(result.stdout) + len(result.stderr)
        self.output_left -= sum(len(file.data) for file in result.files)
        payload = wire.pack_result(step, index, result)
        self.request.sendall(wire.frame(wire.TASK_DONE, payload))


def _left_first(held: dict[int, TaskResult], fed: set[int]) -> int | None:
    """Which of the piped tasks ended first.

    The times are those at which the ends were noticed, so close ones say little.  Then a
    writer that died of SIGPIPE had been left, and one that nobody feeds left of itself.
    """
    if not held:
        return None
    earliest = min(result.ended_ns for result in held.values())
    close = {i: r for i, r in held.items() if r.ended_ns <= earliest + _NOTICED_WITHIN_NS}
    return min(
        close, key=lambda i: (close[i].signal == signal.SIGPIPE, i in fed, close[i].ended_ns)
    )


def _not_started(reason: str, timed_out: bool = False) -> TaskResult:
    return TaskResult("not_started", reason, timed_out=timed_out)


def main(
    control: socket.socket,
    spec: WardenSpec,
    layout: Layout,
    jail: Group,
    uid: int,
    prepared: task.Prepared,
) -> None:
    """Build, say so, wait for the job, run it.  Called in a fresh fork of the warden."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jailer = Jailer(spec, layout, jail, uid, prepared)
    failure: BaseException | None = None
    try:
        jailer.build()
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker is told
        failure = error
    received = _receive_job(control)
    if received is None:
        return
    job, request = received
    if failure is not None:
        failed = {
            "code": "sandbox_setup_failed",
            "stage": f"{jailer.stages.now}: {failure}",
            "errno": process.errno_of(failure),
        }
        request.sendall(wire.json_frame(wire.FAILED, failed))
        return
    jailer.run(job, request)


def _receive_job(control: socket.socket) -> tuple[int, socket.socket] | None:
    """The job and the request's socket, from the warden; None where it has ended."""
    data, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(2 * 4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    job, request = wire.descriptors(ancillary)
    return job, socket.socket(fileno=request)
