"""How long a request may run: docs/api.md, as pure functions.

The server, the client library and the planner call the same function, so that all of them
reach the same number.  Nothing here has defaults: they are written once, in
`gaoler.config.defaults`, and handed in as `BudgetRules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """The four numbers of the formula, each in milliseconds."""

    wall_timeout_ms: int  # a task of role "case" that names no wall_ms
    build_ms: int  # a task of role "build" that names no wall_ms
    grace_ms: int  # once a step: set-up, kill and collection
    upload_ms: int  # once for each step that carries files


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The longest budget of each kind of request, in milliseconds.  Configuration only."""

    interactive_ms: int  # RUNNER_TIMEOUT_MS
    grading_ms: int  # OVERALL_TIMEOUT_MS
    project_ms: int  # RUNNER_PROJECT_TIMEOUT_MS


class TimeSettings(Protocol):
    """The settings that the formula's numbers come from."""

    @property
    def wall_timeout_ms(self) -> int: ...
    @property
    def budget_build_ms(self) -> int: ...
    @property
    def budget_grace_ms(self) -> int: ...
    @property
    def budget_upload_ms(self) -> int: ...
    @property
    def runner_timeout_ms(self) -> int: ...
    @property
    def overall_timeout_ms(self) -> int: ...
    @property
    def runner_project_timeout_ms(self) -> int: ...


def budget_rules(settings: TimeSettings) -> BudgetRules:
    """The four numbers as the settings have them."""
    return BudgetRules(
        wall_timeout_ms=settings.wall_timeout_ms,
        build_ms=settings.budget_build_ms,
        grace_ms=settings.budget_grace_ms,
        upload_ms=settings.budget_upload_ms,
    )


def ceilings(settings: TimeSettings) -> Ceilings:
    """The three ceilings as the settings have them."""
    return Ceilings(
        interactive_ms=settings.runner_timeout_ms,
        grading_ms=settings.overall_timeout_ms,
        project_ms=settings.runner_project_timeout_ms,
    )


@dataclass(frozen=True, slots=True)
class TaskTime:
    """What the formula needs of a task."""

    wall_ms: int | None  # limits.wall_ms, None where the client named none
    role: str = "case"  # "build" or "case"


@dataclass(frozen=True, slots=True)
class StepTime:
    """What the formula needs of a step: its tasks run side by side."""

    tasks: Sequence[TaskTime]  # at least one
    has_files: bool = False  # some task of it has a non-empty `files`


def task_ms(task: TaskTime, rules: BudgetRules) -> int:
    """The time a task is given: its own, else the default of its role."""
    if task.wall_ms is not None:
        return task.wall_ms
    return rules.build_ms if task.role == "build" else rules.wall_timeout_ms


def step_ms(step: StepTime, rules: BudgetRules) -> int:
    """A step lasts as long as its longest task, plus grace, plus upload if it has files."""
    longest_ms = max(task_ms(task, rules) for task in step.tasks)
    upload_ms = rules.upload_ms if step.has_files else 0
    return longest_ms + rules.grace_ms + upload_ms


def request_budget_ms(
    steps: Sequence[StepTime],
    rules: BudgetRules,
    ceiling_ms: int,
    budget_ms: int | None = None,
) -> int:
    """The request's budget: the sum of its steps, capped by the ceiling, then by `budget_ms`.

    Cached steps stay in the sum, so that client and server compute the same number.
    """
    total_ms = sum(step_ms(step, rules) for step in steps)
    capped_ms = min(total_ms, ceiling_ms)
    return capped_ms if budget_ms is None else min(capped_ms, budget_ms)


def ceiling_ms(priority: str, action: str, ceilings: Ceilings) -> int:
    """The ceiling of a request: `action` "project" has its own, whatever the priority."""
    if action == "project":
        return ceilings.project_ms
    return ceilings.grading_ms if priority == "grading" else ceilings.interactive_ms
