"""What a client asks for: the body of `execute` (docs/api.md) as frozen values.

What is left out is not sent, so that the service's own default holds, and so that an older
service is not told of a field that it does not know.  Values are checked by the service, whose
refusal names the field; here only their types, when the request is made, and what could not be
sent at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gaoler.http.client_check import need_types


class Stored(msgspec.Struct, frozen=True):
    """Bytes that the service's file store has."""

    file_id: str  # their SHA-256 in lower-case hex


# The bytes of a stdin or of a file.  Text is sent as it is, bytes as base64.
Content = str | bytes | Stored


class File(msgspec.Struct, frozen=True):
    """A file with a mode of its own, such as 0o755; the service's default is 0o644."""

    content: Content
    mode: int = 0o644


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one task; None: the service's default."""

    wall_ms: int | None = None
    cpu_ms: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    output_bytes: int | None = None  # of stdout and of stderr each
    file_bytes: int | None = None
    stack_bytes: int | None = None


class Collect(msgspec.Struct, frozen=True):
    """A file to be returned; `store`: put it into the file store and return its id."""

    path: str
    store: bool = False


class Task(msgspec.Struct, frozen=True):
    """One program."""

    cmd: str  # with a "/" in it a path, else looked up in the task's PATH
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    stdin: Content = ""
    files: Mapping[str, Content | File] = {}  # by workspace-relative path
    working_dir: str = "."
    profile: str | None = None
    role: Literal["build", "case"] = "case"
    limits: Limits = Limits()
    collect: Sequence[str | Collect] = ()
    cacheable: bool = False

    def __post_init__(self) -> None:
        for name, value in (("args", self.args), ("collect", self.collect)):
            if isinstance(value, str):  # which is a sequence of strings as well
                raise TypeError(f"{name}: expected a list of strings, not one string")


class Pipe(msgspec.Struct, frozen=True):
    """From one task's stdout to another's stdin, by index in their step."""

    source: int
    target: int


class Tasks(msgspec.Struct, frozen=True):
    """Tasks that run side by side and talk to each other."""

    tasks: Sequence[Task]
    pipes: Sequence[Pipe] = ()


# A list: tasks that run side by side and do not.
Step = Task | Sequence[Task] | Tasks


class Request(msgspec.Struct, frozen=True):
    """Steps that run in order and share one workspace."""

    steps: Sequence[Step]
    priority: Literal["interactive", "grading"] = "interactive"
    action: Literal["run", "project"] = "run"
    budget_ms: int | None = None  # where less is wanted than the formula gives
    evaluation_id: str | None = None
    attempt_id: str | None = None
    subject: str | None = None
    purpose: Literal["run", "try"] = "run"
    stop_on_failure: bool = False
    wait: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.steps, Task | Tasks):
            raise TypeError("steps: expected a list of steps, not one")
        need_types(self)
        if not self.steps:
            raise ValueError("steps: there are none")
        for index, step in enumerate(self.steps):
            if not tasks_of(step):
                raise ValueError(f"steps[{index}]: there are no tasks in it")
        if self.budget_ms is not None and self.budget_ms < 1:
            raise ValueError(f"budget_ms: {self.budget_ms}, expected at least 1")


def tasks_of(step: Step) -> Sequence[Task]:
    """The tasks of a step, however it is written."""
    if isinstance(step, Task):
        return (step,)
    return step.tasks if isinstance(step, Tasks) else step
