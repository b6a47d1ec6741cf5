"""What a sandbox is asked to do, and what it says back: plain, frozen values.

The worker builds a `Job`, `sandbox.wire` turns it into bytes, the jailer reads them, and
the `TaskResult`s come back the same way.  Both sides import this module, so it knows
nothing of HTTP, actors or the kernel, and it imports the standard library alone.

Units are in the names; a `…_ns` is a reading of CLOCK_MONOTONIC, which all processes of
one host share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# TornDown comes at the latest this long after a request has ended or was ended; what cannot be
# removed by then is in quarantine.
TEARDOWN_MS = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use.  All of them are set; defaults were filled in at admission."""

    wall_ms: int
    cpu_ms: int
    memory_bytes: int
    pids: int
    output_bytes: int  # of each of stdout and stderr
    file_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to be written below /box before the task starts."""

    path: str  # relative, checked by `sandbox.paths.check`
    mode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Task:
    """One program to run."""

    cmd: str
    args: tuple[str, ...]
    env: dict[str, str]  # complete: the fixed variables are already in it
    stdin: bytes
    files: tuple[InputFile, ...]
    working_dir: str  # relative to /box; "." is /box itself
    profile: str
    limits: Limits
    # True: the client named wall_ms, so the task starts only where all of it still fits
    # before the deadline.  False: it gets its default or what is left, whichever is less.
    wall_promised: bool
    collect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipe:
    """Connects one task's stdout to another task's stdin, both by index in their step."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Step:
    """Tasks that run side by side."""

    tasks: tuple[Task, ...]
    pipes: tuple[Pipe, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """All that one sandbox will run, in order."""

    request_id: str
    steps: tuple[Step, ...]
    deadline_ns: int
    stop_on_failure: bool
    workspace_bytes: int
    output_bytes: int  # REQUEST_OUTPUT_LIMIT_BYTES: of all streams and collected files
    memory_bytes: int  # the request cgroup's limit, and what the queue reserved

    @property
    def width(self) -> int:
        """Tasks of the widest step: the slots that the request takes."""
        return max(len(step.tasks) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a task used.  Times are whole milliseconds, rounded to the nearest."""

    wall_ms: int = 0
    cpu_user_ms: int = 0
    cpu_system_ms: int = 0
    memory_peak_bytes: int = 0
    pids_peak: int = 0
    oom_kills: int = 0
    pids_limit_hits: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """One path of `collect`: its bytes, or why there are none (then `error` is set)."""

    path: str
    data: bytes = b""
    error: str | None = None  # missing, not_a_regular_file, too_large, unreadable


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one task ended.  `outcome` is one of those in docs/api.md."""

    outcome: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: tuple[Collected, ...] = ()
    stats: Stats = field(default_factory=Stats)
    ended_ns: int = 0  # 0: it was never started
    cut_by_budget: bool = False  # it ran out of the request's time before its own

    @property
    def succeeded(self) -> bool:
        """True where the program ran to its end and said that all went well."""
        return self.outcome == "completed" and self.exit_code == 0


# What a sandbox tells its listener, in this order: any number of TaskDone, then one of
# Finished and Failed, then TornDown.  After a cancel, or where the sandbox died,
# Failed and TornDown come without Finished.


@dataclass(frozen=True, slots=True)
class TaskDone:
    step: int
    task: int
    result: TaskResult


@dataclass(frozen=True, slots=True)
class Finished:
    """Every task has its result.  `exec_ns` is when the first program was started, 0: none."""

    exec_ns: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Our fault, or a cancel: no result is to be trusted.

    `code`: "sandbox_setup_failed" (nothing ran), "internal_error" (something had),
    "unavailable" (no warden to run it; nothing was started) or "cancelled".
    """

    code: str
    stage: str  # for the log, never for a client
    errno: int = 0


@dataclass(frozen=True, slots=True)
class TornDown:
    """Nothing of the sandbox is left: its slots are free again.

    `quarantined`: the teardown did not end in time; UID, cgroup and memory stay taken
    until a second TornDown with `quarantined` false follows.
    """

    quarantined: bool = False


Event = TaskDone | Finished | Failed | TornDown
