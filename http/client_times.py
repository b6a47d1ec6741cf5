"""How long a request may run, and how long a client waits for its answer.  Pure."""

from __future__ import annotations

import msgspec

from gaoler.actors.policy.budget import (
    StepTime,
    TaskTime,
    budget_rules,
    ceiling_ms,
    ceilings,
    request_budget_ms,
)
from gaoler.config import defaults
from gaoler.http.client_types import Request, Step, tasks_of

# What a client allows a project beyond its ceiling, for queue and slack together.
PROJECT_WAIT_MS = 60_000


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The service's settings of these names, in milliseconds.

    Needed only for a service that was given other values: the budget that is sent is computed
    from these, so with ceilings below the service's own a request gets less than it could.
    """

    wall_timeout_ms: int = defaults.WALL_TIMEOUT_MS
    budget_build_ms: int = defaults.BUDGET_BUILD_MS
    budget_grace_ms: int = defaults.BUDGET_GRACE_MS
    budget_upload_ms: int = defaults.BUDGET_UPLOAD_MS
    runner_timeout_ms: int = defaults.RUNNER_TIMEOUT_MS
    overall_timeout_ms: int = defaults.OVERALL_TIMEOUT_MS
    runner_project_timeout_ms: int = defaults.RUNNER_PROJECT_TIMEOUT_MS
    queue_allowance_interactive_ms: int = defaults.QUEUE_ALLOWANCE_INTERACTIVE_MS
    queue_allowance_grading_ms: int = defaults.QUEUE_ALLOWANCE_GRADING_MS
    runner_ttl_slack_ms: int = defaults.RUNNER_TTL_SLACK_MS


USUAL = Times()


def budget_ms(request: Request, times: Times = USUAL) -> int:
    """The budget that the service will compute, and that goes out as `budget_ms`."""
    most_ms = ceiling_ms(request.priority, request.action, ceilings(times))
    steps = [_step_time(step) for step in request.steps]
    return request_budget_ms(steps, budget_rules(times), most_ms, request.budget_ms)


def patience_ms(request: Request, times: Times = USUAL) -> int:
    """How long to wait for the answer: budget, queue allowance and slack.

    A project is given its whole ceiling and a minute.
    """
    if request.action == "project":
        return times.runner_project_timeout_ms + PROJECT_WAIT_MS
    allowance_ms = (
        times.queue_allowance_grading_ms
        if request.priority == "grading"
        else times.queue_allowance_interactive_ms
    )
    return budget_ms(request, times) + allowance_ms + times.runner_ttl_slack_ms


def _step_time(step: Step) -> StepTime:
    tasks = tasks_of(step)
    return StepTime(
        tasks=[TaskTime(task.limits.wall_ms, task.role) for task in tasks],
        has_files=any(task.files for task in tasks),
    )
