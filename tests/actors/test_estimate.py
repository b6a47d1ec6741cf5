"""The guess behind `Retry-After`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from gaoler.actors.policy.estimate import Forecast, retry_after_s
from gaoler.actors.policy.line import Waiting
from gaoler.actors.policy.slots import GRADING, INTERACTIVE, Room, SlotRequest

MS = 1_000_000
AGING_MS = 1_000


def waiting(
    ticket: str, budget_ms: int, slots: int = 1, memory_bytes: int = 0, since_ms: int = 0
) -> Waiting:
    """One that waits; a ticket that begins with "g" is a grading one."""
    priority = GRADING if ticket.startswith("g") else INTERACTIVE
    request = SlotRequest(ticket, priority, slots, memory_bytes, budget_ms)
    return Waiting(request, since_ms * MS)


def starts_ms(
    free: Room,
    running: Iterable[tuple[int, Room]],
    those: Sequence[Waiting],
    now_ms: int = 0,
    passed: bool = False,
) -> dict[str, int]:
    """By ticket, in the order in which they start; `running` in milliseconds."""
    lines = {
        priority: [each for each in those if each.request.priority == priority]
        for priority in (INTERACTIVE, GRADING)
    }
    forecast = Forecast(
        now_ms * MS,
        free,
        [(end_ms * MS, room) for end_ms, room in running],
        lines[INTERACTIVE],
        lines[GRADING],
        AGING_MS,
        passed,
    )
    return {each.waiting.request.ticket: each.start_ns // MS for each in forecast.starts(99)}


def test_what_fits_now_starts_now() -> None:
    two = [waiting("a", 100, memory_bytes=5), waiting("b", 100, memory_bytes=5)]
    assert starts_ms(Room(2, 10), [], two, now_ms=5) == {"a": 5, "b": 5}


def test_a_request_waits_for_as_many_deadlines_as_it_needs_slots() -> None:
    running = [(100, Room(1, 0)), (300, Room(1, 0))]
    assert starts_ms(Room(0, 0), running, [waiting("wide", 50, slots=2)]) == {"wide": 300}


def test_those_ahead_take_their_whole_budget() -> None:
    those = [waiting("a", 50), waiting("b", 70)]
    assert starts_ms(Room(0, 0), [(100, Room(1, 0))], those) == {"a": 100, "b": 150}


def test_memory_is_waited_for_as_slots_are() -> None:
    running = [(40, Room(1, 1)), (90, Room(1, 9))]
    assert starts_ms(Room(5, 0), running, [waiting("a", 1, memory_bytes=10)]) == {"a": 90}


def test_a_deadline_that_has_passed_counts_as_now() -> None:
    assert starts_ms(Room(0, 0), [(100, Room(1, 0))], [waiting("a", 1)], now_ms=500) == {"a": 500}


def test_what_waits_for_a_quarantine_gets_the_last_known_instant() -> None:
    running = [(40, Room(1, 1))]
    assert starts_ms(Room(0, 0), running, [waiting("a", 1, memory_bytes=50)]) == {"a": 40}


def test_grading_comes_after_all_interactive_ones_where_it_does_not_age() -> None:
    those = [waiting("g", 10), waiting("a", 400), waiting("b", 400)]
    running = [(100, Room(1, 0))]
    assert starts_ms(Room(0, 0, 1), running, those) == {"a": 100, "b": 500, "g": 900}


def test_grading_that_ages_meanwhile_goes_before_the_next_head_and_alternates_with_them() -> None:
    those = [
        *(waiting(name, 600) for name in ("a", "b", "c")),
        *(waiting(name, 100) for name in ("g1", "g2")),
    ]
    assert starts_ms(Room(0, 0, 1), [(500, Room(1, 0))], those) == {
        "a": 500,
        "g1": 1_100,
        "b": 1_200,
        "g2": 1_800,
        "c": 1_900,
    }


def test_grading_that_ages_goes_at_that_moment_where_the_head_is_too_wide() -> None:
    those = [waiting("wide", 100, slots=2), waiting("g", 100)]
    found = starts_ms(Room(1, 0, 1), [(3_000, Room(1, 0))], those)
    assert found == {"g": 1_000, "wide": 3_000}


def test_the_grading_classs_ceiling_is_counted() -> None:
    those = [waiting("g1", 300), waiting("g2", 300), waiting("a", 300)]
    running = [(200, Room(1, 0, 1))]
    assert starts_ms(Room(3, 0, 0), running, those) == {"a": 0, "g1": 200, "g2": 500}


def test_a_head_that_was_passed_is_not_passed_again() -> None:
    those = [waiting("a", 300), waiting("b", 300), waiting("g", 100, since_ms=-5_000)]
    assert starts_ms(Room(1, 0, 1), [], those, passed=True) == {"a": 0, "g": 300, "b": 400}


def test_nothing_is_played_beyond_the_one_that_is_asked_for() -> None:
    those = [waiting("a", 300), waiting("b", 300), waiting("c", 300)]
    forecast = Forecast(0, Room(1, 0), [], those, [], AGING_MS, False)
    assert [each.waiting.request.ticket for each in forecast.starts(99, until="b")] == ["a", "b"]


def test_the_memory_below_the_ceiling_is_counted() -> None:
    those = [waiting("g", 300, memory_bytes=5), waiting("a", 300, memory_bytes=5)]
    running = [(200, Room(1, 5, 1, 5))]
    assert starts_ms(Room(3, 10, 1, 4), running, those) == {"a": 0, "g": 200}


@pytest.mark.parametrize(("eta_ms", "seconds"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2)])
def test_retry_after_is_whole_seconds_and_at_least_one(eta_ms: int, seconds: int) -> None:
    assert retry_after_s(eta_ms) == seconds
