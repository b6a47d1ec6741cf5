"""Hostile programs through the whole service: the right outcome in time, and a clean host."""

from __future__ import annotations

from collections.abc import Callable

from tests.emulation import stretched
from tests.hosting import LiveService, eventually, jails_on_host
from tests.live.hostile import HOSTILE, UNREAD
from tests.live.quiet import expect_quiet, quiet

MOST_EXTRA_MS = 1000


def test_each_hostile_program_ends_in_time_and_leaves_nothing(
    start_service: Callable[..., LiveService],
) -> None:
    service = start_service()
    before = quiet(service)
    for hostile in HOSTILE:
        result = service.execute(hostile.task).body["results"][0]
        assert result["outcome"] in hostile.outcomes, (hostile.name, result)
        assert result["stats"]["wall_ms"] <= hostile.wall_ms + stretched(MOST_EXTRA_MS), (
            hostile.name
        )
        eventually(lambda: not jails_on_host(service.instance), "its jail is gone")
    assert service.execute(UNREAD).body["results"][0]["outcome"] == "completed"
    expect_quiet(service, before)
