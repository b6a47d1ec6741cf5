"""A client's request as the JSON of docs/api.md.  Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gaoler.http.client_types import (
    Collect,
    Content,
    File,
    Limits,
    Pipe,
    Request,
    Step,
    Stored,
    Task,
    Tasks,
)


def body(request: Request, budget_ms: int) -> bytes:
    """The body of `execute`, UTF-8 JSON, with this budget.

    Raises ValueError, which names the field, for text with a lone surrogate: JSON has none.
    """
    # At least 1, so that a task's own impossible time is what the service refuses.
    envelope = _given(request, without=("steps",)) | {"budget_ms": max(1, budget_ms)}
    value = {"steps": [_step(step) for step in request.steps], **envelope}
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise ValueError(f"{_no_text(value)}: not valid text, it has a lone surrogate") from None


def _given(struct: msgspec.Struct, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields that are not at their defaults."""
    fields = msgspec.structs.fields(struct)
    values = {field.name: getattr(struct, field.name) for field in fields}
    return {
        field.name: values[field.name]
        for field in fields
        if field.name not in without and (field.required or values[field.name] != field.default)
    }


def _step(step: Step) -> object:
    if isinstance(step, Task):
        return _task(step)
    if isinstance(step, Tasks):
        tasks = [_task(task) for task in step.tasks]
        return {"tasks": tasks, "pipes": [_pipe(pipe) for pipe in step.pipes]}
    return [_task(task) for task in step]


def _pipe(pipe: Pipe) -> dict[str, object]:
    return {"from": [pipe.source, "stdout"], "to": [pipe.target, "stdin"]}


def _task(task: Task) -> dict[str, object]:
    made: dict[str, object] = {
        "args": list(task.args),
        "env": dict(task.env),
        "files": {path: _file(file) for path, file in task.files.items()},
        "limits": _given(task.limits) if task.limits != Limits() else {},
        "collect": [_collect(each) for each in task.collect],
    }
    fields = _given(task, without=("stdin", *made))
    if task.stdin not in ("", b""):
        fields["stdin"] = _content(task.stdin)
    return fields | {name: value for name, value in made.items() if value}


def _content(content: Content) -> dict[str, str]:
    if isinstance(content, Stored):
        return {"file_id": content.file_id}
    if isinstance(content, str):
        return {"content": content}
    return {"base64": base64.b64encode(content).decode()}


def _file(file: Content | File) -> dict[str, str]:
    if isinstance(file, File):
        return {**_content(file.content), "mode": f"{file.mode:04o}"}
    return _content(file)


def _collect(entry: str | Collect) -> object:
    if isinstance(entry, Collect):
        return {"path": entry.path, "store": entry.store}
    return entry


def _no_text(value: object, path: str = "") -> str | None:
    """The JSON path of the first text that is none, None where there is no such text."""
    if isinstance(value, str):
        return None if _is_text(value) else path
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not _is_text(name):
                return path
            found = _no_text(each, f"{path}.{name}" if path else name)
            if found is not None:
                return found
    if isinstance(value, list):
        for index, each in enumerate(value):
            found = _no_text(each, f"{path}[{index}]")
            if found is not None:
                return found
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
