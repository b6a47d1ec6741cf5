"""A sandbox in memory: nothing runs, and everything that can happen can be made to happen.

It fits `actors.ports.Sandbox` and is held to the same contract tests as the real one.  What a
task does is scripted by its `cmd`:

    sandbox = FakeSandbox()
    sandbox.script("/bin/false", Ends(completed(exit_code=1)))
    sandbox.script("/bin/sleep", lambda task: Ends(completed(), takes_ms=int(task.args[0]) * 1000))
    sandbox.script("block", Held())          # runs until the test says `complete`, or a cancel
    sandbox.script("boom", Dies("supervisor"))

A `cmd` without a script exits with 0 at once.  There is no thread in here: events are
delivered by whoever caused them, in `start`, `complete`, `tear_down` or `cancel`, one at a
time for each run.  Time is counted, not spent: a task that `takes_ms` ends at once, and the
run's own clock moves on by that much, so that deadlines and wall limits can be tested.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gaoler.actors.clock import NS_PER_MS, Clock, MonotonicClock
from gaoler.sandbox.job import (
    Event,
    Failed,
    Finished,
    Job,
    Limits,
    Stats,
    Step,
    Task,
    TaskDone,
    TaskResult,
    TornDown,
)


@dataclass(frozen=True, slots=True)
class Ends:
    """The task ends by itself after `takes_ms`, unless its time runs out before."""

    result: TaskResult
    takes_ms: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """The task runs until the test completes it; it heeds no limit and no deadline."""


@dataclass(frozen=True, slots=True)
class SetupFails:
    """Met in the first step: Failed("sandbox_setup_failed"), nothing ran."""

    stage: str = "mounts"
    errno: int = 0


@dataclass(frozen=True, slots=True)
class Dies:
    """The sandbox dies as the task starts: Failed("internal_error")."""

    stage: str = "supervisor"
    errno: int = 0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Met in the first step: there is no warden, Failed("unavailable")."""


Act = Ends | Held | SetupFails | Dies | Unavailable
Script = Act | Callable[[Task], Act]

# What is done at once about the end of a run.  "held": nothing, until `tear_down` is called.
# "quarantined": TornDown(quarantined=True), and the second one at `tear_down`.
TEARDOWNS = ("prompt", "held", "quarantined")


def completed(
    exit_code: int = 0, stdout: bytes = b"", stderr: bytes = b"", stats: Stats | None = None
) -> TaskResult:
    """The result of a program that ran to its end."""
    return TaskResult(
        "completed",
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        stats=stats or Stats(),
    )


class FakeSandbox:
    """Sandboxes that run scripts.

    `started` has every run in the order of its start; `problem` is what `ready` answers;
    `teardown` is one of TEARDOWNS and applies to runs that end from then on;
    `hears_cancel` False makes sandboxes that go on as if nothing had been said.
    """

    def __init__(self, clock: Clock | None = None, teardown: str = "prompt") -> None:
        self.clock = clock or MonotonicClock()
        self.teardown = teardown
        self.problem: str | None = None
        self.hears_cancel = True
        self.started: list[FakeRun] = []
        self._scripts: dict[str, Script] = {}
        self._changed = threading.Condition()

    def script(self, cmd: str, script: Script) -> None:
        """Tasks with that `cmd` do this from now on."""
        self._scripts[cmd] = script

    def ready(self) -> str | None:
        return self.problem

    def start(self, job: Job, listener: Callable[[Event], None]) -> FakeRun:
        run = FakeRun(self, job, listener)
        run.begin()
        # Shown only now: a test that found it sooner could complete what was not yet held.
        with self._changed:
            self.started.append(run)
            self._changed.notify_all()
        return run

    def run(self, number: int, timeout_s: float = 5.0) -> FakeRun:
        """The run of that number, from 0; waits for its start, TimeoutError if none came."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.started) > number, timeout_s):
                raise TimeoutError(f"run {number} was not started")
            return self.started[number]

    def act(self, task: Task) -> Act:
        """What the script of a task says."""
        script = self._scripts.get(task.cmd, Ends(completed()))
        return script(task) if callable(script) else script


@dataclass(slots=True)
class _Progress:
    """Where a run is."""

    now_ns: int  # its own clock: counted, not spent
    step: int = -1  # the running step
    open: set[int] = field(default_factory=set)  # tasks of it that have no result yet
    failed_before: bool = False  # some task did not succeed
    exec_ns: int = 0


class FakeRun:
    """One running job.

    Invariants: `_ended` once Finished or Failed was delivered, and no TaskDone after it;
    `_gone` once the last TornDown was, and nothing after it.
    """

    def __init__(self, sandbox: FakeSandbox, job: Job, listener: Callable[[Event], None]) -> None:
        self.job = job
        self.cancelled = threading.Event()  # `cancel` was called
        self._sandbox = sandbox
        self._listener = listener
        self._progress = _Progress(sandbox.clock.now_ns())
        self._ended = False
        self._gone = False
        # Re-entrant: a listener may cancel the very run that it hears.
        self._lock = threading.RLock()

    # --- the port -------------------------------------------------------------------------

    def cancel(self) -> None:
        """As the port says; `hears_cancel` False makes it do nothing."""
        with self._lock:
            if self._sandbox.hears_cancel:
                self._fail("cancelled", "cancel")
        self.cancelled.set()

    # --- for tests ------------------------------------------------------------------------

    def complete(self, result: TaskResult | None = None) -> None:
        """End every task that is held in the present step, and go on.  None: exit code 0."""
        with self._lock:
            for task in sorted(self._progress.open):
                self._task_done(task, result or completed())
            self._go_on()

    def die(self, stage: str = "jailer") -> None:
        """The sandbox dies of itself."""
        with self._lock:
            self._fail("internal_error", stage)

    def emit(self, event: Event) -> None:
        """Deliver any event, also one that breaks the rules: for tests of the listener."""
        with self._lock:
            self._listener(event)

    def tear_down(self) -> None:
        """End a teardown that was held or in quarantine."""
        with self._lock:
            self._say_torn_down(TornDown())

    # --- the run --------------------------------------------------------------------------

    def begin(self) -> None:
        """Run what runs by itself; called once, by `FakeSandbox.start`."""
        with self._lock:
            self._go_on()

    def _go_on(self) -> None:
        """Start steps until one of them is held, or all is over."""
        progress = self._progress
        while not self._ended and not progress.open:
            progress.step += 1
            if progress.step == len(self.job.steps):
                self._finish()
                return
            self._start_step(self.job.steps[progress.step])

    def _start_step(self, step: Step) -> None:
        progress = self._progress
        progress.open = set(range(len(step.tasks)))
        started_ns = progress.now_ns
        stop = progress.failed_before and self.job.stop_on_failure
        for number, task in enumerate(step.tasks):
            if self._ended:
                return
            if stop:
                self._task_done(number, TaskResult("not_started", "earlier_step_failed"))
            else:
                self._start_task(number, task, started_ns)

    def _start_task(self, number: int, task: Task, started_ns: int) -> None:
        allowed_ms = self._allowed_ms(task, started_ns)
        if allowed_ms is None:
            self._task_done(number, TaskResult("not_started", "budget", timed_out=True))
            return
        match self._sandbox.act(task):
            case SetupFails(stage=stage, errno=errno):
                self._fail("sandbox_setup_failed", stage, errno)
            case Dies(stage=stage, errno=errno):
                self._fail("internal_error", stage, errno)
            case Unavailable():
                self._fail("unavailable", "connect")
            case Held():
                self._note_exec(started_ns)
            case Ends(result=result, takes_ms=takes_ms):
                self._note_exec(started_ns)
                self._end_task(number, result, takes_ms, allowed_ms, started_ns)

    def _allowed_ms(self, task: Task, started_ns: int) -> int | None:
        """How long the task may run; None: the budget cannot hold it."""
        left_ms = (self.job.deadline_ns - started_ns) // NS_PER_MS
        if task.wall_promised:
            return task.limits.wall_ms if task.limits.wall_ms <= left_ms else None
        return min(task.limits.wall_ms, left_ms) if left_ms > 0 else None

    def _end_task(
        self, number: int, result: TaskResult, takes_ms: int, allowed_ms: int, started_ns: int
    ) -> None:
        if takes_ms > allowed_ms:
            result = TaskResult("timed_out", "wall", timed_out=True, stdout=result.stdout)
        wall_ms = min(takes_ms, allowed_ms)
        ended_ns = started_ns + wall_ms * NS_PER_MS
        self._progress.now_ns = max(self._progress.now_ns, ended_ns)
        stats = dataclasses.replace(result.stats, wall_ms=wall_ms)
        self._task_done(number, dataclasses.replace(result, stats=stats))

    def _note_exec(self, started_ns: int) -> None:
        self._progress.exec_ns = self._progress.exec_ns or started_ns

    def _task_done(self, number: int, result: TaskResult) -> None:
        if self._ended:
            return
        self._progress.open.discard(number)
        self._progress.failed_before |= not result.succeeded
        self._listener(TaskDone(self._progress.step, number, result))

    # --- the end --------------------------------------------------------------------------

    def _finish(self) -> None:
        self._ended = True
        self._listener(Finished(self._progress.exec_ns))
        self._begin_teardown()

    def _fail(self, code: str, stage: str, errno: int = 0) -> None:
        if self._ended:
            return
        self._ended = True
        self._progress.open.clear()
        self._listener(Failed(code, stage, errno))
        self._begin_teardown()

    def _begin_teardown(self) -> None:
        if self._sandbox.teardown == "prompt":
            self._say_torn_down(TornDown())
        elif self._sandbox.teardown == "quarantined":
            self._say_torn_down(TornDown(quarantined=True))

    def _say_torn_down(self, event: TornDown) -> None:
        if self._gone or not self._ended:
            return
        self._gone = not event.quarantined
        self._listener(event)


# --- builders, for the tests of every room that starts jobs -------------------------------

_LIMITS = Limits(
    wall_ms=5_000,
    cpu_ms=5_000,
    memory_bytes=64 * 1024 * 1024,
    pids=32,
    output_bytes=1024 * 1024,
    file_bytes=16 * 1024 * 1024,
    stack_bytes=8 * 1024 * 1024,
)


def make_task(cmd: str, *args: str, wall_ms: int | None = None, stdin: bytes = b"") -> Task:
    """A plain task.  With `wall_ms` that time is promised, without it is the default 5 s."""
    return Task(
        cmd=cmd,
        args=args,
        env={"PATH": "/usr/bin:/bin", "HOME": "/box", "TMPDIR": "/tmp", "LANG": "C.UTF-8"},
        stdin=stdin,
        files=(),
        working_dir=".",
        profile="standard_v1",
        limits=dataclasses.replace(_LIMITS, wall_ms=wall_ms or _LIMITS.wall_ms),
        wall_promised=wall_ms is not None,
    )


def make_job(
    *steps: Task | tuple[Task, ...],
    deadline_ns: int = 0,
    stop_on_failure: bool = False,
    memory_bytes: int = 512 * 1024 * 1024,
    request_id: str = "request",
) -> Job:
    """A job of these steps; a task alone is a step of its own."""
    return Job(
        request_id=request_id,
        steps=tuple(Step(step if isinstance(step, tuple) else (step,)) for step in steps),
        deadline_ns=deadline_ns,
        stop_on_failure=stop_on_failure,
        workspace_bytes=16 * 1024 * 1024,
        output_bytes=4 * 1024 * 1024,
        memory_bytes=memory_bytes,
    )
