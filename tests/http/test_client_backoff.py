"""When a busy service is asked again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaoler.http.client import Backoff, RunnerBusy
from gaoler.http.client_backoff import Attempts, backoff

policies = st.builds(
    Backoff,
    retries=st.integers(0, 2_000),
    first_ms=st.integers(0, 10_000),
    most_ms=st.integers(0, 60_000),
    total_ms=st.integers(0, 600_000),
)
chances = st.floats(0, 1, exclude_max=True)


@settings(deadline=None)
@given(policies, st.lists(st.tuples(st.none() | st.integers(0, 100), chances, st.floats(0, 50))))
def test_no_wait_is_shorter_than_asked_for_and_all_of_them_end(
    policy: Backoff, refusals: list[tuple[int | None, float, float]]
) -> None:
    """Each refusal: its Retry-After, our luck, and how long it took to come."""
    now = 0.0
    luck = iter([chance for _, chance, _ in refusals])
    attempts = Attempts(policy, lambda: now, lambda: next(luck))
    for made, (retry_after_s, _, took_s) in enumerate(refusals):
        now += took_s
        try:
            pause_s = attempts.pause_s(RunnerBusy("full", retry_after_s=retry_after_s))
        except RunnerBusy:
            return
        now += pause_s
        assert pause_s >= (retry_after_s or 0)
        assert pause_s <= (retry_after_s or 0) + policy.most_ms / 1_000
        assert made < policy.retries
        assert now * 1_000 <= policy.total_ms + 1e-6


def test_what_is_raised_in_the_end_is_the_last_refusal() -> None:
    attempts = Attempts(Backoff(retries=0), lambda: 0.0, lambda: 0.0)
    busy = RunnerBusy("full")
    with pytest.raises(RunnerBusy) as caught:
        attempts.pause_s(busy)
    assert caught.value is busy


def test_the_waits_double_up_to_the_longest() -> None:
    policy = Backoff(first_ms=100, most_ms=1_000)
    assert [policy.pause_ms(n, None, 0.0) for n in range(6)] == [50, 100, 200, 400, 500, 500]
    assert policy.pause_ms(10_000, None, 0.0) == 500


def test_chance_spreads_the_waits_by_half() -> None:
    policy = Backoff(first_ms=100)
    assert policy.pause_ms(0, 3, 0.0) == 3_050
    assert policy.pause_ms(0, 3, 0.5) == 3_075


def test_a_number_of_retries_is_a_policy() -> None:
    assert backoff(3) == Backoff(retries=3)
    assert backoff(Backoff(first_ms=1)) == Backoff(first_ms=1)


@pytest.mark.parametrize("name", ["retries", "first_ms", "most_ms", "total_ms"])
def test_a_policy_below_zero_is_named(name: str) -> None:
    fields: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"{name}: -1"):
        Backoff(**fields)
