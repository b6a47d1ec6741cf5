"""From a checked body to what the actors are told: defaults filled in, limits held.

The order is docs/api.md's: profiles and limits first, then the files that are referred
to.  Subject rates, caps and the queue come after it and are Admission's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UnsetType

from gaoler.actors.messages import Reply, Submit
from gaoler.actors.policy.budget import (
    BudgetRules,
    StepTime,
    TaskTime,
    budget_rules,
    ceiling_ms,
    ceilings,
    request_budget_ms,
    task_ms,
)
from gaoler.actors.policy.memory import grading_memory_bytes, request_memory_bytes
from gaoler.config.settings import Settings
from gaoler.http import content
from gaoler.http.errors import Problem, invalid, over_limit
from gaoler.http.paths import quoted
from gaoler.http.schemas import ExecuteGiven, StepGiven, TaskGiven
from gaoler.sandbox.job import InputFile, Job, Limits, Pipe, Step, Task

MIB = 1024 * 1024

STACK_BYTES = 64 * MIB
LEAST_MEMORY_BYTES = 16 * MIB

# What every program finds in its environment; the task's own variables go over it.
FIXED_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/box",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
}


class FileStore(Protocol):
    """Uploaded files, as admission needs them."""

    def takes_files(self) -> bool:
        """False where nothing can be put into it."""

    def size_bytes(self, file_id: str) -> int | None:
        """None where there is no such file."""

    def read(self, file_id: str) -> bytes | None:
        """The bytes, None where there is no such file."""


class NoFiles:
    """The file store of a server that has none."""

    def takes_files(self) -> bool:
        return False

    def size_bytes(self, file_id: str) -> int | None:
        del file_id
        return None

    def read(self, file_id: str) -> bytes | None:
        del file_id
        return None


class Admitted(msgspec.Struct, frozen=True):
    """A request that this server is willing to run; all of Submit but ticket and reply."""

    job: Job
    priority: str
    budget_ms: int
    wait: bool
    evaluation_id: str | None
    attempt_id: str | None
    subject: str | None
    purpose: str
    key_id: str

    def submit(self, ticket: str, reply: Callable[[Reply], None]) -> Submit:
        """The message for Admission; `reply` is called once, from another thread."""
        fields = msgspec.structs.asdict(self)
        return Submit(ticket=ticket, request_id=self.job.request_id, reply=reply, **fields)

    def log_fields(self) -> dict[str, object]:
        """What the queue is told, for the log line; `gaoler plan --log` reads it."""
        return {
            "priority": self.priority,
            "slots": self.job.width,
            "memory_bytes": self.job.memory_bytes,
            "budget_ms": self.budget_ms,
            "wait": self.wait,
            "evaluation_id": self.evaluation_id,
        }


class _Frame(msgspec.Struct, frozen=True):
    """What one request's kind decides for all its tasks."""

    settings: Settings
    priority: str
    ceiling_ms: int
    workspace_bytes: int
    rules: BudgetRules


def admit(
    request: ExecuteGiven, request_id: str, key_id: str, settings: Settings, files: FileStore
) -> Admitted:
    """The job and its envelope.

    Raises Problem: 400 for `store` without a file store, 422 `limits_exceeded` and
    `profile_not_allowed`, 404 `file_not_found`.
    """
    frame = _frame(request, settings)
    _check_store(request, files)
    _check_width(request, settings)
    steps_limits = [[_limits(task, frame) for task in step.tasks] for step in request.steps]
    memory_bytes = _memory_bytes(steps_limits, frame)
    _check_profiles(request, settings)
    _check_files(request, frame, files)
    job = Job(
        request_id=request_id,
        steps=_steps(request.steps, steps_limits, settings, files),
        deadline_ns=0,
        stop_on_failure=request.stop_on_failure,
        workspace_bytes=frame.workspace_bytes,
        output_bytes=settings.request_output_limit_bytes,
        memory_bytes=memory_bytes,
    )
    return Admitted(
        job=job,
        priority=request.priority,
        budget_ms=_budget_ms(request, frame),
        wait=request.wait,
        evaluation_id=request.evaluation_id,
        attempt_id=request.attempt_id,
        subject=request.subject,
        purpose=request.purpose,
        key_id=key_id,
    )


def _frame(request: ExecuteGiven, settings: Settings) -> _Frame:
    project = request.action == "project"
    return _Frame(
        settings=settings,
        priority=request.priority,
        ceiling_ms=ceiling_ms(request.priority, request.action, ceilings(settings)),
        workspace_bytes=settings.project_workspace_bytes if project else settings.workspace_bytes,
        rules=budget_rules(settings),
    )


def _budget_ms(request: ExecuteGiven, frame: _Frame) -> int:
    steps = [
        StepTime(
            tasks=[TaskTime(_given(task.limits.wall_ms), task.role) for task in step.tasks],
            has_files=any(task.files for task in step.tasks),
        )
        for step in request.steps
    ]
    return request_budget_ms(steps, frame.rules, frame.ceiling_ms, request.budget_ms)


# --- width, memory, profiles ---------------------------------------------------------------


def _check_store(request: ExecuteGiven, files: FileStore) -> None:
    if files.takes_files():
        return
    for step in request.steps:
        for task in step.tasks:
            for entry in task.collect:
                if entry.store:
                    raise invalid(f"{entry.where}.store", "this server has no file store")


def _check_width(request: ExecuteGiven, settings: Settings) -> None:
    most = [("MAX_CONCURRENCY", settings.max_concurrency)]
    if request.priority == "grading":
        most.append(("GRADING_RUNNER_CONCURRENCY", settings.grading_runner_concurrency))
    for step in request.steps:
        for name, slots in most:
            if len(step.tasks) > slots:
                why = f"{len(step.tasks)} tasks side by side, {name} is {slots}"
                raise over_limit(step.where, why)


def _memory_bytes(steps_limits: Sequence[Sequence[Limits]], frame: _Frame) -> int:
    settings = frame.settings
    needed_bytes = request_memory_bytes(
        steps=[[limits.memory_bytes for limits in step] for step in steps_limits],
        workspace_bytes=frame.workspace_bytes,
        tmp_bytes=settings.tmp_bytes,
        shm_bytes=settings.shm_bytes,
        output_bytes=settings.request_output_limit_bytes,
    )
    most_bytes = settings.tasks_memory_bytes
    if frame.priority == "grading":
        most_bytes = grading_memory_bytes(settings)
    if needed_bytes > most_bytes:
        why = (
            f"the request reserves {needed_bytes} bytes of memory, "
            f"this server has {most_bytes} for its class"
        )
        raise over_limit("steps", why)
    return needed_bytes


def _check_profiles(request: ExecuteGiven, settings: Settings) -> None:
    for step in request.steps:
        for task in step.tasks:
            if task.profile is not None and task.profile not in settings.allowed_sandbox_profiles:
                where = f"{task.where}.profile"
                detail = f"{where}: {quoted(task.profile)} is not allowed here"
                raise Problem("profile_not_allowed", detail)


# --- limits of one task --------------------------------------------------------------------


def _given(value: int | UnsetType) -> int | None:
    return None if isinstance(value, UnsetType) else value


def _limits(task: TaskGiven, frame: _Frame) -> Limits:
    """The task's limits, all of them set."""
    settings, given = frame.settings, task.limits
    most_wall_ms = max(1, frame.ceiling_ms - settings.budget_grace_ms)
    usual_wall_ms = min(task_ms(TaskTime(None, task.role), frame.rules), most_wall_ms)

    def pick(name: str, usual: int, least: int, most: int) -> int:
        return _in_range(_given(getattr(given, name)), usual, least, most, task.where, name)

    wall_ms = pick("wall_ms", usual_wall_ms, 1, most_wall_ms)
    most_memory = settings.memory_limit_max_bytes
    memory = pick("memory_bytes", settings.memory_limit_bytes, LEAST_MEMORY_BYTES, most_memory)
    output = settings.request_output_limit_bytes
    return Limits(
        wall_ms=wall_ms,
        cpu_ms=pick("cpu_ms", wall_ms, 1, frame.ceiling_ms),
        memory_bytes=memory,
        pids=pick("pids", settings.pids_limit, 1, settings.pids_limit_max),
        output_bytes=pick("output_bytes", settings.output_limit_bytes, 0, output),
        file_bytes=pick("file_bytes", frame.workspace_bytes, 0, frame.workspace_bytes),
        stack_bytes=pick("stack_bytes", min(STACK_BYTES, memory), 1, memory),
    )


def _in_range(given: int | None, usual: int, least: int, most: int, where: str, name: str) -> int:
    if given is None:
        return usual
    if not least <= given <= most:
        raise over_limit(f"{where}.limits.{name}", f"allowed is {least} to {most}")
    return given


# --- files ---------------------------------------------------------------------------------


def _check_files(request: ExecuteGiven, frame: _Frame, files: FileStore) -> None:
    """404 for an unknown id, 422 where the inputs cannot fit into the workspace together."""
    largest: dict[str, int] = {}  # a path that is written twice counts once
    total = 0
    for step in request.steps:
        for task in step.tasks:
            _size_bytes(task.stdin, files)
            for each in task.files:
                more = _size_bytes(each.content, files) - largest.get(each.path, 0)
                if more > 0:
                    largest[each.path] = largest.get(each.path, 0) + more
                    total += more
            if total > frame.workspace_bytes:
                why = f"more than the workspace's {frame.workspace_bytes} bytes"
                raise over_limit(f"{task.where}.files", why)


def _size_bytes(given: content.Content, files: FileStore) -> int:
    if isinstance(given, content.Inline):
        return len(given.data)
    size = files.size_bytes(given.file_id)
    if size is None:
        raise _no_file(given)
    return size


def _bytes(given: content.Content, files: FileStore) -> bytes:
    if isinstance(given, content.Inline):
        return given.data
    data = files.read(given.file_id)
    if data is None:  # it was there a moment ago: its time ran out
        raise _no_file(given)
    return data


def _no_file(given: content.Stored) -> Problem:
    return Problem("file_not_found", f"{given.path}: there is no file {given.file_id}")


# --- the job -------------------------------------------------------------------------------


def _steps(
    steps: Sequence[StepGiven],
    steps_limits: Sequence[Sequence[Limits]],
    settings: Settings,
    files: FileStore,
) -> tuple[Step, ...]:
    return tuple(
        Step(
            tasks=tuple(
                _task(task, limits, settings, files)
                for task, limits in zip(step.tasks, step_limits, strict=True)
            ),
            pipes=tuple(Pipe(pipe.source, pipe.target) for pipe in step.pipes),
        )
        for step, step_limits in zip(steps, steps_limits, strict=True)
    )


def _task(task: TaskGiven, limits: Limits, settings: Settings, files: FileStore) -> Task:
    return Task(
        cmd=task.cmd,
        args=task.args,
        env={**FIXED_ENVIRONMENT, **task.env},
        stdin=_bytes(task.stdin, files),
        files=tuple(
            InputFile(each.path, each.mode, _bytes(each.content, files)) for each in task.files
        ),
        working_dir=task.working_dir,
        profile=settings.default_sandbox_profile if task.profile is None else task.profile,
        limits=limits,
        wall_promised=not isinstance(task.limits.wall_ms, UnsetType),
        collect=tuple(dict.fromkeys(entry.path for entry in task.collect)),
    )
