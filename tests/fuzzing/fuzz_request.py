"""Fuzzed: a body of `execute`, from its bytes to the job that root reads.

Input: a body.
"""

from __future__ import annotations

import json
import os
import unicodedata
from typing import Any

import msgspec

from gaoler.config.settings import Settings
from gaoler.http import content, errors, schemas
from gaoler.http.admit import FIXED_ENVIRONMENT, Admitted, NoFiles, admit
from gaoler.http.decode import decode
from gaoler.http.errors import Problem
from gaoler.http.schemas import Bounds, ExecuteGiven, TaskGiven, read_execute
from gaoler.sandbox import paths, wire
from gaoler.sandbox.job import Limits, Task
from tests.fuzzing import fuzz_job, json_paths

LONGEST_BYTES = 3_000
_FIELDS = (
    *("steps", "priority", "action", "budget_ms", "evaluation_id", "attempt_id", "subject"),
    *("purpose", "stop_on_failure", "wait", "cmd", "args", "env", "stdin", "files"),
    *("working_dir", "profile", "role", "limits", "collect", "cacheable", "tasks", "pipes"),
    *("from", "to", "path", "store", "mode", "content", "base64", "file_id", *Limits.__slots__),
)
_TEXTS = (
    *("a", "./a", "a/b", "..", "interactive", "grading", "run", "project", "try", "build"),
    *("case", "standard_v1", "native_v1", "x", "stdout", "stdin", "0755", "eA==", "0" * 64),
    # As msgspec writes the place of what it refuses.
    "x` - at `$.y",
)
WORDS = (
    *(b'"%s":' % name.encode() for name in _FIELDS),
    *(b'"%s"' % text.encode() for text in _TEXTS),
    *(b'{"cmd":"a"}', b'[0,"stdout"]', b'[1,"stdin"]', b'{"from":[0,"stdout"],"to":[1,"stdin"]}'),
    *(b"null", b"true", b"-1", b"1.0", b"16777216", b"10000000000000000000000", rb"\n", b"[]"),
)
SETTINGS = Settings(max_concurrency=4, tasks_memory_bytes=2**34)
# So few that a small body passes them.
BOUNDS = Bounds(steps=3, parallel_tasks=3, files=4)
STATUSES = {400, 404, 422}
ARGUMENT_BYTES = 131_071
# The longest text of a client's own in a detail, the path around it, and what is wrong.
LONGEST_DETAIL = 2_200


def fuzz(data: bytes) -> None:
    check(data)


def check(body: bytes, bounds: Bounds = BOUNDS) -> bool:
    """A body is admitted within every limit, or refused in words that name a field of it;
    True where it is admitted."""
    try:
        value = decode(body)
    except Problem as problem:
        check_refusal(problem)
        return False
    return check_value(value, bounds)


def check_value(value: Any, bounds: Bounds = BOUNDS) -> bool:
    try:
        request = read_execute(value, bounds)
    except Problem as problem:
        check_refusal(problem)
        check_named(problem, value)
        return False
    check_request(request, value, bounds)
    try:
        admitted = admit(request, "r", "", SETTINGS, NoFiles())
    except Problem as problem:
        check_refusal(problem)
        check_named(problem, value)
        return False
    check_admitted(admitted, request)
    return True


# --- refused ------------------------------------------------------------------------------


def check_refusal(problem: Problem) -> None:
    """It is one line, short, and can be written."""
    assert problem.status in STATUSES
    assert problem.detail.isprintable()
    assert len(problem.detail) <= LONGEST_DETAIL
    assert json.loads(errors.render(problem, "r"))["status"] == problem.status


def check_named(problem: Problem, value: Any) -> None:
    """The field that is named is there, or it is the one that is missing."""
    named = json_paths.split(problem.detail)
    if named is None:
        assert problem.code == "invalid_request"
        assert not isinstance(value, dict) or "unknown fields" in problem.detail
        return
    parts, why = named
    found = json_paths.follow(value, parts)
    assert found, f"nothing is at {problem.detail}"
    if found == [json_paths.MISSING]:
        assert why == "required, but missing"
    elif why == "required, but missing":
        raise AssertionError(f"it is there: {problem.detail}")


# --- taken --------------------------------------------------------------------------------


def check_request(request: ExecuteGiven, value: Any, bounds: Bounds) -> None:
    """What was read obeys every limit, and says what the client said."""
    assert 1 <= len(request.steps) == len(value["steps"]) <= bounds.steps
    assert sum(len(task.files) for task in tasks(request)) <= bounds.files
    for step, given in zip(request.steps, value["steps"], strict=True):
        assert 1 <= len(step.tasks) <= bounds.parallel_tasks
        assert step.single == (isinstance(given, dict) and "tasks" not in given)
        ends = [(pipe.source, pipe.target) for pipe in step.pipes]
        assert all(source != target for source, target in ends)
        assert all(0 <= end < len(step.tasks) for pair in ends for end in pair)
        assert len({s for s, _ in ends}) == len({t for _, t in ends}) == len(ends)
        assert all(step.tasks[target].stdin == content.Inline(b"") for _, target in ends)
        inside = given if isinstance(given, list) else given.get("tasks", [given])
        for task, raw in zip(step.tasks, inside, strict=True):
            check_task(task, raw)
    for identity in (request.evaluation_id, request.attempt_id, request.subject):
        assert identity is None or 1 <= len(identity) <= 128
        assert "Cc" not in {unicodedata.category(sign) for sign in identity or ""}
    assert request.budget_ms is None or (type(request.budget_ms) is int and request.budget_ms >= 1)
    assert request.action in ("run", "project")
    assert request.priority == ("grading" if request.action == "project" else request.priority)
    if request.purpose == "try":
        assert request.subject is not None
        assert (request.priority, request.action) == ("interactive", "run")
    assert len(request.ignored_fields) <= schemas.MOST_UNKNOWN_FIELDS
    assert set(request.ignored_fields) < set(value)
    errors.dump(request.ignored_fields)


def tasks(request: ExecuteGiven) -> list[TaskGiven]:
    return [task for step in request.steps for task in step.tasks]


def check_task(task: TaskGiven, raw: dict[str, Any]) -> None:
    assert (task.cmd, list(task.args)) == (raw["cmd"], raw.get("args", []))
    assert task.env == raw.get("env", {})
    assert task.cmd != ""
    texts = [task.cmd, *task.args, *(f"{name}={text}" for name, text in task.env.items())]
    assert all(type(text) is str and "\0" not in text for text in texts)
    assert all(len(text.encode()) <= ARGUMENT_BYTES for text in texts)
    assert all(name and "=" not in name for name in task.env)
    assert len(task.args) <= schemas.MOST_ARGUMENTS
    assert len(task.env) <= schemas.MOST_VARIABLES
    assert len(task.collect) <= schemas.MOST_COLLECTED
    for path in (task.working_dir, *(f.path for f in task.files), *(c.path for c in task.collect)):
        assert paths.fault(path) is None
        assert paths.normalise(path) == path
    names = [file.path for file in task.files]
    assert len(set(names)) == len(names) == len(raw.get("files", {}))
    assert not any(one.startswith(other + "/") for one in names for other in names)
    assert all(type(file.mode) is int and 0 <= file.mode <= 0o777 for file in task.files)
    assert [entry.written for entry in task.collect] == [
        entry if isinstance(entry, str) else entry["path"] for entry in raw.get("collect", [])
    ]
    for name, limit in msgspec.structs.asdict(task.limits).items():
        assert limit is msgspec.UNSET or limit == raw["limits"][name]


def check_admitted(admitted: Admitted, request: ExecuteGiven) -> None:
    """The job obeys the settings, and root's code reads what the worker has written."""
    job = admitted.job
    assert 1 <= admitted.budget_ms <= 300_000
    assert request.budget_ms is None or admitted.budget_ms <= request.budget_ms
    assert 1 <= job.memory_bytes <= SETTINGS.tasks_memory_bytes
    assert job.width <= SETTINGS.max_concurrency
    sizes: dict[str, int] = {}
    pairs = zip([t for step in job.steps for t in step.tasks], tasks(request), strict=True)
    for task, given in pairs:
        check_limits(task)
        assert task.env == FIXED_ENVIRONMENT | given.env
        assert len(set(task.collect)) == len(task.collect)
        sizes |= {file.path: len(file.data) for file in task.files}
    assert sum(sizes.values()) <= job.workspace_bytes
    descriptor = wire.write_job(job)
    try:
        header = wire.read_job(descriptor)
        size = wire.sealed_size(descriptor)
    finally:
        os.close(descriptor)
    assert size <= fuzz_job.spec().job_bytes_max
    assert [[t.limits for t in step.tasks] for step in header.steps] == [
        [t.limits for t in step.tasks] for step in job.steps
    ]


def check_limits(task: Task) -> None:
    most = fuzz_job.spec().limits_max
    values = {name: getattr(task.limits, name) for name in Limits.__slots__}
    assert all(type(value) is int and value >= 0 for value in values.values())
    assert all(value <= getattr(most, name) for name, value in values.items())
    assert all(values[name] >= 1 for name in ("wall_ms", "cpu_ms", "pids", "stack_bytes"))
    assert values["memory_bytes"] >= 16 << 20
    assert values["stack_bytes"] <= values["memory_bytes"]
    assert task.profile in SETTINGS.allowed_sandbox_profiles
