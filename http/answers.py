"""Task results as the JSON of docs/api.md."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from gaoler.actors.messages import Answer
from gaoler.http.large import LARGE_BYTES, Base64, Text
from gaoler.http.schemas import ExecuteGiven, StepGiven, TaskGiven
from gaoler.sandbox.job import Collected, Stats, TaskResult

# The outcomes of a program that ended by itself, and which of exit_code and signal it has.
_HAS_EXIT_CODE = "completed"
_HAS_SIGNAL = "signaled"


def execute_answer(
    request_id: str, request: ExecuteGiven, answer: Answer, *, stub: bool = False
) -> dict[str, object]:
    """The body of a 200 of `execute`; `stub` marks every result of a server that runs nothing.

    Where `kept_bytes` is `LARGE_BYTES` or more it may hold what only `large.pieces` can write.
    """
    steps = zip(request.steps, answer.results, strict=True)
    return {
        "request_id": request_id,
        "results": [_step(step, results, stub) for step, results in steps],
        "overrun": any(_cut(result) for results in answer.results for result in results),
        "cached_steps": 0,
        "ignored_fields": list(request.ignored_fields),
        "timing": {**times_of(answer), "budget_ms": answer.budget_ms},
    }


def times_of(answer: Answer) -> dict[str, int]:
    """Where an answer's time went, for the client and for the log."""
    return {
        "queued_ms": answer.queued_ms,
        "setup_ms": answer.setup_ms,
        "run_ms": answer.run_ms,
    }


def kept_bytes(request: ExecuteGiven, answer: Answer) -> int:
    """What an answer keeps in memory: streams, files, and what is echoed of the request."""
    results = [result for step in answer.results for result in step]
    streams = sum(len(result.stdout) + len(result.stderr) for result in results)
    files = sum(len(f.path) + len(f.data) for result in results for f in result.files)
    paths = (e.written for step in request.steps for task in step.tasks for e in task.collect)
    return streams + files + sum(map(len, (*paths, *request.ignored_fields)))


def _cut(result: TaskResult) -> bool:
    """True where the budget kept the task from starting, or took time from it."""
    if result.cut_by_budget:
        return True
    return result.outcome == "not_started" and result.reason == "budget"


def _step(step: StepGiven, results: Sequence[TaskResult], stub: bool) -> object:
    """One result for a step that was written as one task, else a list in the tasks' order."""
    tasks = [_task(*pair, stub) for pair in zip(step.tasks, results, strict=True)]
    return tasks[0] if step.single else tasks


def _task(task: TaskGiven, result: TaskResult, stub: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "outcome": result.outcome,
        "reason": result.reason,
        "exit_code": result.exit_code if result.outcome == _HAS_EXIT_CODE else None,
        "signal": result.signal if result.outcome == _HAS_SIGNAL else None,
        "timed_out": result.timed_out,
    }
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        fields |= _stream(name, data)
    fields |= {
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "files": _files(task, result.files),
        "cached": False,
        "stats": _stats(result.stats),
    }
    return fields | {"stub": True} if stub else fields


def _stream(name: str, data: bytes) -> dict[str, object]:
    """The text, and the exact bytes beside it where the text cannot say them."""
    if _is_text(data):
        return {name: _text(data)}
    return {name: _text(data), f"{name}_base64": _base64(data)}


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _files(task: TaskGiven, collected: Sequence[Collected]) -> dict[str, object]:
    """By the paths as the client wrote them, whatever spelling the sandbox was given."""
    found = {each.path: each for each in collected}
    return {
        entry.written: _file(found[entry.path]) for entry in task.collect if entry.path in found
    }


def _file(file: Collected) -> dict[str, object]:
    if file.error is not None:
        return {"error": file.error}
    fields: dict[str, object] = {
        "size_bytes": len(file.data),
        "sha256": hashlib.sha256(file.data).hexdigest(),
    }
    if _is_text(file.data):
        return {**fields, "content": _text(file.data)}
    return {**fields, "base64": _base64(file.data)}


def _text(data: bytes) -> object:
    return Text(data) if len(data) >= LARGE_BYTES else data.decode("utf-8", "replace")


def _base64(data: bytes) -> object:
    if len(data) >= LARGE_BYTES:
        return Base64(data)
    return base64.b64encode(data).decode("ascii")


def _stats(stats: Stats) -> dict[str, int]:
    return {
        "wall_ms": stats.wall_ms,
        "cpu_user_ms": stats.cpu_user_ms,
        "cpu_system_ms": stats.cpu_system_ms,
        "memory_peak_bytes": stats.memory_peak_bytes,
        "pids_peak": stats.pids_peak,
        "oom_kills": stats.oom_kills,
        "pids_limit_hits": stats.pids_limit_hits,
    }
