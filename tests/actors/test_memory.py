"""The memory that a request reserves: docs/api.md."""

from __future__ import annotations

from dataclasses import replace

from gaoler.actors.policy.memory import (
    REQUEST_OVERHEAD_BYTES,
    TASK_OVERHEAD_BYTES,
    grading_memory_bytes,
    request_memory_bytes,
    usual_request_bytes,
)
from gaoler.config.settings import Settings


def test_one_task_reserves_its_limit_its_folders_and_our_overhead() -> None:
    reserved = request_memory_bytes([[1_000]], 200, 30, 4, 5)
    assert reserved == 1_000 + 200 + 30 + 4 + 2 * 5 + REQUEST_OVERHEAD_BYTES + TASK_OVERHEAD_BYTES


def test_the_step_with_the_most_memory_and_the_widest_one_both_count() -> None:
    one_large, three_small = [10_000], [10, 10, 10]
    both = request_memory_bytes([one_large, three_small], 0, 1, 1, 0)
    assert both == 10_000 + 3 * (2 + TASK_OVERHEAD_BYTES) + REQUEST_OVERHEAD_BYTES


def test_steps_follow_each_other_so_their_memory_does_not_add_up() -> None:
    assert request_memory_bytes([[7]] * 50, 1, 1, 1, 1) == request_memory_bytes([[7]], 1, 1, 1, 1)


def test_grading_leaves_the_memory_of_one_usual_request_where_there_is_that_much() -> None:
    settings = replace(Settings(), max_concurrency=2, tasks_memory_bytes=10**10)
    usual_bytes = usual_request_bytes(settings)
    assert grading_memory_bytes(settings) == 10**10 - usual_bytes
    small = replace(settings, tasks_memory_bytes=2 * usual_bytes - 1)
    assert grading_memory_bytes(small) == 2 * usual_bytes - 1
    shut_out = replace(settings, grading_runner_concurrency=2)
    assert grading_memory_bytes(shut_out) == 10**10
