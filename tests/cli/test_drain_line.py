"""The line between `gaoler serve` and its worker."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from gaoler.cli import drain_line
from gaoler.cli.drain_line import DrainLine
from gaoler.config.settings import Settings


@pytest.fixture
def line() -> Iterator[DrainLine]:
    made = DrainLine(limit_s=1_000.0)
    yield made
    made.close()


def test_nobody_is_asked_before_the_asking_and_everybody_for_good_after_it(
    line: DrainLine,
) -> None:
    first, later = os.dup(line.workers_end()), os.dup(line.workers_end())
    assert not drain_line.is_asked(first)
    assert (line.asked, line.left_s()) == (False, None)
    line.ask()
    line.ask()
    for descriptor in (first, first, later):
        assert drain_line.is_asked(descriptor)
    for descriptor in (first, later):
        os.close(descriptor)
    left_s = line.left_s()
    assert line.asked
    assert left_s is not None
    assert 0 < left_s <= 1_000.0


def test_a_worker_that_is_done_is_heard_and_one_that_died_is_not(line: DrainLine) -> None:
    dies, follows = os.dup(line.workers_end()), os.dup(line.workers_end())
    line.ask()
    os.close(dies)
    assert not line.is_done()
    drain_line.say_done(follows)
    os.close(follows)
    assert line.is_done()
    assert line.is_done()
    assert select.select([line.fileno()], [], [], 0)[0]


def test_a_worker_that_is_done_unasked_is_not_heard(line: DrainLine) -> None:
    drain_line.say_done(line.workers_end())
    assert not line.is_done()


def test_a_worker_may_say_it_to_a_service_that_was_killed() -> None:
    line = DrainLine(limit_s=1.0)
    worker = os.dup(line.workers_end())
    line.close()
    assert drain_line.is_asked(worker)
    drain_line.say_done(worker)
    os.close(worker)


def test_the_time_runs_out() -> None:
    line = DrainLine(limit_s=0.0)
    line.ask()
    assert line.left_s() == 0.0
    line.close()


def test_the_limit_holds_the_longest_wait_and_the_longest_run() -> None:
    settings = Settings(
        queue_allowance_interactive_ms=1_000,
        queue_allowance_grading_ms=50_000,
        overall_timeout_ms=400_000,
        runner_ttl_slack_ms=3_000,
    )
    assert drain_line.limit_s(settings) > 453.0
