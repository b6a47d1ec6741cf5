"""Token buckets, and whose they are."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gaoler.actors.policy.rates import NS_PER_MINUTE, Rates
from gaoler.actors.policy.subjects import Subjects

S = 1_000_000_000


def test_a_full_bucket_lets_a_minutes_requests_go_at_once_and_says_when_the_next_may() -> None:
    rates = Rates(6)
    assert [rates.take("a", 0) for _ in range(7)] == [None] * 6 + [10 * S]
    assert rates.take("a", 4 * S) == 6 * S
    assert rates.take("a", 10 * S) is None


def test_tokens_come_back_evenly_and_no_more_than_the_bucket_holds() -> None:
    rates = Rates(2)
    rates.take("a", 0)
    assert [rates.take("a", 1_000 * S) for _ in range(3)] == [None, None, 30 * S]


def test_each_name_has_a_bucket_of_its_own() -> None:
    rates = Rates(1)
    assert rates.take("a", 0) is None
    assert rates.take("b", 0) is None
    assert rates.take("a", 0) == 60 * S


def test_without_a_rate_nobody_is_refused_and_nothing_is_kept() -> None:
    rates = Rates(0)
    assert all(rates.take("a", 0) is None for _ in range(1_000))
    assert len(rates) == 0


def test_a_token_that_is_handed_back_can_be_taken_again_but_is_never_more_than_were_there() -> None:
    rates = Rates(1)
    rates.take("a", 0)
    rates.hand_back("a")
    rates.hand_back("a")
    rates.hand_back("stranger")
    assert [rates.take("a", 0) for _ in range(2)] == [None, 60 * S]


def test_who_has_not_been_seen_for_a_minute_is_forgotten() -> None:
    rates = Rates(5)
    for number in range(1_000):
        rates.take(number, number)
    for number in range(1_000):
        rates.take("other", NS_PER_MINUTE + 1_000 + number)
    assert len(rates) == 1


@given(
    per_minute=st.integers(1, 600),
    pauses_ns=st.lists(st.integers(0, 20 * S), min_size=1, max_size=60),
)
def test_in_no_stretch_of_time_are_more_taken_than_the_rate_gives(
    per_minute: int, pauses_ns: list[int]
) -> None:
    rates, now_ns = Rates(per_minute), 0
    taken: list[int] = []
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        wait_ns = rates.take("a", now_ns)
        rates.check()
        if wait_ns is None:
            taken.append(now_ns)
        else:
            assert Rates.take(_copy(rates), "a", now_ns + wait_ns - 1) is not None
            assert Rates.take(_copy(rates), "a", now_ns + wait_ns) is None
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            gained = (taken[last] - taken[first]) * per_minute // NS_PER_MINUTE
            assert last - first + 1 <= per_minute + gained


def _copy(rates: Rates) -> Rates:
    import copy

    return copy.deepcopy(rates)


def test_runs_and_tries_of_a_subject_have_rates_of_their_own() -> None:
    subjects = Subjects(runs_per_minute=1, tries_per_minute=2)
    takes = [subjects.take(purpose, "key", "s", 0) for purpose in ("run", "try", "try")]
    assert takes == [None, None, None]
    assert subjects.take("run", "key", "s", 0) == 60
    assert subjects.take("try", "key", "s", 0) == 30
    assert subjects.take("try", "other key", "s", 0) is None
    assert subjects.take("run", "key", None, 0) is None


@pytest.mark.parametrize(("purpose", "again"), [("run", None), ("try", 60)])
def test_a_run_that_the_caps_refuse_is_not_spent_and_a_try_is(
    purpose: str, again: int | None
) -> None:
    subjects = Subjects(runs_per_minute=1, tries_per_minute=1)
    subjects.take(purpose, "key", "s", 0)
    subjects.hand_back(purpose, "key", "s")
    assert subjects.take(purpose, "key", "s", 0) == again
