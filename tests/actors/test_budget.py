"""The budget formula of docs/api.md."""

from __future__ import annotations

import pytest

from gaoler.actors.policy.budget import (
    BudgetRules,
    Ceilings,
    StepTime,
    TaskTime,
    ceiling_ms,
    request_budget_ms,
)

RULES = BudgetRules(wall_timeout_ms=10_000, build_ms=20_000, grace_ms=500, upload_ms=2_000)
CEILINGS = Ceilings(interactive_ms=30_000, grading_ms=300_000, project_ms=200_000)


def test_a_task_without_a_wall_time_takes_the_default_of_its_role() -> None:
    assert request_budget_ms([StepTime([TaskTime(None)])], RULES, 300_000) == 10_500
    assert request_budget_ms([StepTime([TaskTime(None, "build")])], RULES, 300_000) == 20_500


def test_a_named_wall_time_counts_whatever_the_role() -> None:
    assert request_budget_ms([StepTime([TaskTime(1_234, "build")])], RULES, 300_000) == 1_734


def test_a_step_lasts_as_long_as_its_longest_task() -> None:
    step = StepTime([TaskTime(100), TaskTime(3_000), TaskTime(200)])
    assert request_budget_ms([step], RULES, 300_000) == 3_500


def test_every_step_pays_grace_and_only_those_with_files_pay_upload() -> None:
    steps = [StepTime([TaskTime(1_000)], has_files=True), StepTime([TaskTime(1_000)])]
    assert request_budget_ms(steps, RULES, 300_000) == 1_000 + 500 + 2_000 + 1_000 + 500


def test_the_ceiling_caps_the_sum() -> None:
    steps = [StepTime([TaskTime(20_000)])] * 3
    assert request_budget_ms(steps, RULES, 30_000) == 30_000


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(None, 10_500), (7, 7), (99_000, 10_500)])
def test_budget_ms_only_ever_lowers_the_budget(asked_ms: int | None, given_ms: int) -> None:
    assert request_budget_ms([StepTime([TaskTime(None)])], RULES, 30_000, asked_ms) == given_ms


@pytest.mark.parametrize(
    ("priority", "action", "expected_ms"),
    [
        ("interactive", "run", 30_000),
        ("grading", "run", 300_000),
        ("interactive", "project", 200_000),
        ("grading", "project", 200_000),
    ],
)
def test_every_kind_of_request_has_its_ceiling(
    priority: str, action: str, expected_ms: int
) -> None:
    assert ceiling_ms(priority, action, CEILINGS) == expected_ms
