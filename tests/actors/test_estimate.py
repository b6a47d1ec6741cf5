"""The guess behind `Retry-After`."""

from __future__ import annotations

import pytest

from gaoler.actors.policy.estimate import expected_starts_ns, retry_after_s
from gaoler.actors.policy.slots import Room

MS = 1_000_000


def test_what_fits_now_starts_now() -> None:
    assert expected_starts_ns(5, Room(2, 10), [], [(Room(1, 5), 100), (Room(1, 5), 100)]) == [5, 5]


def test_a_request_waits_for_as_many_deadlines_as_it_needs_slots() -> None:
    running = [(100 * MS, Room(1, 0)), (300 * MS, Room(1, 0))]
    assert expected_starts_ns(0, Room(0, 0), running, [(Room(2, 0), 50)]) == [300 * MS]


def test_those_ahead_take_their_whole_budget() -> None:
    running = [(100 * MS, Room(1, 0))]
    waiting = [(Room(1, 0), 50), (Room(1, 0), 70)]
    assert expected_starts_ns(0, Room(0, 0), running, waiting) == [100 * MS, 150 * MS]


def test_memory_is_waited_for_as_slots_are() -> None:
    running = [(40 * MS, Room(1, 1)), (90 * MS, Room(1, 9))]
    assert expected_starts_ns(0, Room(5, 0), running, [(Room(1, 10), 1)]) == [90 * MS]


def test_a_deadline_that_has_passed_counts_as_now() -> None:
    assert expected_starts_ns(500, Room(0, 0), [(100, Room(1, 0))], [(Room(1, 0), 1)]) == [500]


def test_what_waits_for_a_quarantine_gets_the_last_known_instant() -> None:
    running = [(40 * MS, Room(1, 1))]
    assert expected_starts_ns(0, Room(0, 0), running, [(Room(1, 50), 1)]) == [40 * MS]


@pytest.mark.parametrize(("eta_ms", "seconds"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2)])
def test_retry_after_is_whole_seconds_and_at_least_one(eta_ms: int, seconds: int) -> None:
    assert retry_after_s(eta_ms) == seconds
