"""What `gaoler run` asks a service for, and how long it waits.  Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from gaoler.actors.policy.budget import BudgetRules, StepTime, TaskTime, step_ms
from gaoler.config.runtimes import Program
from gaoler.config.settings import Settings

# For the request to get there and the answer to come back, beside what the service promises.
NETWORK_MS = 5_000


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
    priority: str = "interactive"


def request(order: Order) -> dict[str, object]:
    """The body of `execute`: a build, where the language has one, then the run."""
    made = order.program
    limits = {"wall_ms": order.timeout_ms, "memory_bytes": order.memory_bytes}
    run = {
        **_command((*made.run, *order.arguments)),
        "env": dict(order.env),
        "stdin": _content(order.stdin),
        "limits": {name: value for name, value in limits.items() if value is not None},
    }
    steps = [run] if made.build is None else [{**_command(made.build), "role": "build"}, run]
    steps[0]["files"] = {
        each.remote: {**_content(each.data), "mode": f"{each.mode:04o}"} for each in order.uploads
    }
    return {"steps": steps, "stop_on_failure": True, "priority": order.priority}


def _command(words: Sequence[str]) -> dict[str, object]:
    return {"cmd": words[0], "args": list(words[1:])}


def _content(data: bytes) -> dict[str, str]:
    if b"\0" not in data:  # a NUL is six characters in JSON, so many of them make it large
        try:
            return {"content": data.decode()}
        except UnicodeDecodeError:
            pass
    return {"base64": base64.b64encode(data).decode()}


def patience_ms(order: Order, settings: Settings) -> int:
    """How long a service with these settings may take: budget, queue allowance and slack.

    No ceiling caps it: this service's own may be higher than what is known here, and whoever
    waits too long loses less than whoever leaves too early.
    """
    rules = BudgetRules(
        wall_timeout_ms=settings.wall_timeout_ms,
        build_ms=settings.budget_build_ms,
        grace_ms=settings.budget_grace_ms,
        upload_ms=settings.budget_upload_ms,
    )
    steps = [StepTime([TaskTime(order.timeout_ms)], has_files=True)]
    if order.program.build is not None:
        steps.append(StepTime([TaskTime(None, "build")]))
    allowance_ms = (
        settings.queue_allowance_grading_ms
        if order.priority == "grading"
        else settings.queue_allowance_interactive_ms
    )
    budget_ms = sum(step_ms(step, rules) for step in steps)
    return budget_ms + allowance_ms + settings.runner_ttl_slack_ms + NETWORK_MS
