"""The search for the fewest slots and the lowest cap."""

from __future__ import annotations

import pytest

from gaoler.planning.report import seconds
from gaoler.planning.search import Search, Trial, Want, caps, search, text
from gaoler.planning.times import parse_times
from tests.planning.conftest import Plan


def searched(plan: Plan, want: Want, most_slots: int = 6) -> Search:
    planned = plan(
        cap=2,
        students=8,
        looping_share=0.25,
        copies=10,
        think_time=parse_times("exponential:10000"),
        duration_ms=60_000,
    )
    return search(planned, want, most_slots)


def test_a_longer_wait_never_needs_more_slots(plan: Plan) -> None:
    needed = []
    for want_ms in (0, 200, 1_000, 5_000, 20_000, 60_000):
        found = searched(plan, Want(want_ms, None)).found
        needed.append(99 if found is None else found.slots)
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) > 2  # else it says little


def test_what_is_found_holds_and_nothing_smaller_does(plan: Plan) -> None:
    want = Want(1_000, None)
    result = searched(plan, want)
    found = result.found
    assert found is not None
    assert found.interactive_ms is not None
    assert found.interactive_ms <= 1_000
    smaller = [
        trial for trial in result.trials if (trial.slots, trial.cap) < (found.slots, found.cap)
    ]
    assert {trial.slots for trial in smaller} >= set(range(1, found.slots))
    assert not any(trial.holds for trial in smaller)


def test_both_waits_must_hold_where_both_are_wanted(plan: Plan) -> None:
    alone = searched(plan, Want(5_000, None)).found
    both = searched(plan, Want(5_000, 50)).found
    assert alone is not None
    assert both is not None
    assert both.grading_ms is not None
    assert both.grading_ms <= 50
    assert both.slots >= alone.slots


def test_what_cannot_be_had_is_said(plan: Plan) -> None:
    result = searched(plan, Want(0, 0), most_slots=1)
    assert result.found is None
    said = text(result, 1)
    assert said.startswith("no cap holds that with up to 1 slot on a node")
    last = result.trials[-1]
    assert (last.slots, last.cap) == (1, 8)
    assert f"cap 8, gave a p95 of {seconds(last.interactive_ms)} interactive" in said


def test_a_run_that_never_started_holds_no_wait() -> None:
    assert not Want(10, None).holds(None, 0)
    assert Want(None, 10).holds(None, 10)


def test_the_caps_tried_rise_to_where_none_refuses(plan: Plan) -> None:
    assert caps(plan(cap=4, students=30)) == [1, 2, 4, 8, 16, 30]
    assert caps(plan(cap=3, students=30, evaluations=10)) == [1, 2, 3]
    assert caps(plan(cap=50, students=4)) == [1, 2, 4, 8, 16, 32, 50]


def test_every_trial_is_a_row_and_the_one_found_is_marked() -> None:
    trials = (
        Trial(1, 4, None, 20, 7, 1.0, False),
        Trial(2, 4, 1_500, 20, 0, 0.5, True),
    )
    lines = text(Search(Want(2_000, None), trials), 9).splitlines()
    assert lines[0] == "the least that holds it: 2 slots on a node, cap 4"
    assert lines[3].split() == ["1", "4", "never", "0.02", "s", "7", "100%"]
    assert lines[4].split() == ["->", "2", "4", "1.50", "s", "0.02", "s", "0", "50%"]


@pytest.mark.parametrize("most_slots", [1, 3])
def test_nothing_beyond_the_most_slots_is_tried(plan: Plan, most_slots: int) -> None:
    result = searched(plan, Want(0, None), most_slots)
    assert max(trial.slots for trial in result.trials) == most_slots
