"""What `gaoler run` asks a service for.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gaoler.config.kinds import DAY_MS
from gaoler.config.runtimes import Program
from gaoler.http.client_times import Times
from gaoler.http.client_types import File, Limits, Request, Task

# No ceiling is known here but the service's own: one that was raised must not be lowered by
# ours, and whoever waits too long loses less than whoever leaves too early.
TIMES = Times(runner_timeout_ms=DAY_MS, overall_timeout_ms=DAY_MS)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of this machine, as it will lie in the workspace."""

    remote: str
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that the request is made from."""

    program: Program
    uploads: tuple[Upload, ...]  # the source is the first
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    stdin: bytes = b""
    timeout_ms: int | None = None
    memory_bytes: int | None = None
    priority: Literal["interactive", "grading"] = "interactive"


def request(order: Order) -> Request:
    """A build, where the language has one, then the run."""
    made = order.program
    files = {each.remote: File(_content(each.data), each.mode) for each in order.uploads}
    command, *arguments = (*made.run, *order.arguments)
    run = Task(
        command,
        arguments,
        env=dict(order.env),
        stdin=_content(order.stdin),
        files=files if made.build is None else {},
        limits=Limits(wall_ms=order.timeout_ms, memory_bytes=order.memory_bytes),
    )
    steps = [run] if made.build is None else [_build(made.build, files), run]
    return Request(steps, stop_on_failure=True, priority=order.priority)


def _build(words: Sequence[str], files: dict[str, File]) -> Task:
    return Task(words[0], words[1:], files=files, role="build")


def _content(data: bytes) -> str | bytes:
    """As text where it is one: that is shorter than base64."""
    if b"\0" not in data:  # a NUL is six characters in JSON, so many of them make it large
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return data
