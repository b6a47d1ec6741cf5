"""The client's budget is the server's, and its patience covers what the server promises."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import ujson
from hypothesis import given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st

from gaoler.config.settings import Settings
from gaoler.http import admit
from gaoler.http.client import Limits, Request, Step, Task, Tasks, Times, budget_ms, patience_ms
from gaoler.http.client_body import body
from gaoler.http.client_times import USUAL
from gaoler.http.schemas import Bounds, read_execute

BOUNDS = Bounds(steps=64, parallel_tasks=8, files=1_000)

tasks = st.builds(
    Task,
    cmd=st.just("true"),
    files=st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=2),
    role=st.sampled_from(["build", "case"]),
    limits=st.builds(Limits, wall_ms=st.none() | st.integers(0, 10**7)),
)
several: st.SearchStrategy[Sequence[Task]] = st.lists(tasks, min_size=1, max_size=4)
steps: st.SearchStrategy[Step] = st.one_of(tasks, several, st.builds(Tasks, several))
requests = st.builds(
    Request,
    steps=st.lists(steps, min_size=1, max_size=6),
    priority=st.sampled_from(["interactive", "grading"]),
    action=st.sampled_from(["run", "project"]),
    budget_ms=st.none() | st.integers(1, 10**6),
)
times = st.builds(
    Times,
    wall_timeout_ms=st.integers(1, 10**6),
    budget_build_ms=st.integers(1, 10**6),
    budget_grace_ms=st.integers(0, 10**4),
    budget_upload_ms=st.integers(0, 10**4),
    runner_timeout_ms=st.integers(26_000, 10**6),
    overall_timeout_ms=st.integers(1, 10**6),
    runner_project_timeout_ms=st.integers(1, 600_000),
)


def servers_budget_ms(request: Request, sent_ms: int | None, settings: Settings) -> int:
    """What a server makes of the request, with this `budget_ms` in it or with none."""
    value = ujson.loads(body(request, sent_ms or 1))
    if sent_ms is None:
        del value["budget_ms"]
    given = read_execute(value, BOUNDS)
    return admit._budget_ms(given, admit._frame(given, settings))


@of_hypothesis(deadline=None)
@given(request=requests, known=st.just(USUAL) | times)
def test_the_budget_is_the_one_that_the_server_computes(request: Request, known: Times) -> None:
    settings = Settings(**msgspec.structs.asdict(known))
    ours_ms = budget_ms(request, known)
    assert ours_ms == servers_budget_ms(request, request.budget_ms, settings)
    if ours_ms >= 1:  # what is less was no budget anybody could send
        assert ours_ms == servers_budget_ms(request, ours_ms, settings)


@of_hypothesis(deadline=None)
@given(request=requests, known=times)
def test_a_server_of_other_settings_never_gives_more_than_was_sent(
    request: Request, known: Times
) -> None:
    sent_ms = max(1, budget_ms(request, known))
    assert servers_budget_ms(request, sent_ms, Settings()) <= sent_ms


def test_the_client_knows_the_servers_defaults() -> None:
    settings = Settings()
    known = msgspec.structs.asdict(USUAL)
    assert known == {name: getattr(settings, name) for name in known}


CASE = Task("true")
FILED = Task("cc", files={"a.c": ""}, role="build")


@pytest.mark.parametrize(
    ("request_", "expected_ms"),
    [
        (Request([CASE]), 10_500 + 20_000 + 2_000),
        (Request([CASE], budget_ms=700), 700 + 20_000 + 2_000),
        (Request([FILED, CASE, CASE]), 30_000 + 20_000 + 2_000),
        (Request([FILED, CASE, CASE], priority="grading"), 43_500 + 60_000 + 2_000),
        (Request([CASE] * 64, priority="grading"), 300_000 + 60_000 + 2_000),
        (Request([CASE], action="project"), 300_000 + 60_000),
        (Request([CASE], action="project", budget_ms=1), 300_000 + 60_000),
    ],
)
def test_a_client_waits_for_budget_allowance_and_slack(request_: Request, expected_ms: int) -> None:
    assert patience_ms(request_) == expected_ms


def test_the_numbers_of_another_service_count_where_they_are_named() -> None:
    known = Times(runner_timeout_ms=50_000, queue_allowance_interactive_ms=1, runner_ttl_slack_ms=2)
    request = Request([FILED, CASE, CASE])
    assert budget_ms(request, known) == 43_500
    assert patience_ms(request, known) == 43_503
