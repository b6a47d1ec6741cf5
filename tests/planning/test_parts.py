"""The parts of the planner by themselves: levels, proxies, programs, distributions."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaoler.config.kinds import NotAllowedError
from gaoler.planning.fleet import LeastOutstanding, RoundRobin
from gaoler.planning.programs import graders_program, is_looping, students_program
from gaoler.planning.report import percentile_ms
from gaoler.planning.tally import NEVER_NS, SPANS, Level
from gaoler.planning.times import RETRY_AFTER, parse_times, times
from tests.planning.conftest import MS, Plan


@given(
    end_ns=st.integers(1, 5_000),
    changes=st.lists(st.tuples(st.integers(0, 6_000), st.integers(-3, 3)), max_size=12),
)
def test_a_levels_means_are_those_of_a_count_taken_every_nanosecond(
    end_ns: int, changes: list[tuple[int, int]]
) -> None:
    level = Level(end_ns)
    counts = [0] * end_ns
    for at_ns, by in sorted(changes):
        level.change(at_ns, by)
        for later_ns in range(at_ns, end_ns):
            counts[later_ns] += by
    level.close()
    spans = [counts[begin : begin + level.span_ns] for begin in range(0, end_ns, level.span_ns)]
    assert level.area_ns() == sum(counts)
    assert level.means() == pytest.approx([statistics.fmean(span) for span in spans])
    assert len(spans) <= SPANS


def test_by_turns_every_node_comes_before_one_comes_again() -> None:
    turns = RoundRobin(3)
    assert [turns.pick() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(nodes=st.integers(1, 5), steps=st.lists(st.integers(0, 9), max_size=60))
def test_the_node_with_the_fewest_under_way_is_taken(nodes: int, steps: list[int]) -> None:
    """Even numbers take a node, odd ones end a request of one that has any."""
    balance, under_way = LeastOutstanding(nodes), [0] * nodes
    for step in steps:
        busy = [number for number, count in enumerate(under_way) if count]
        if step % 2 and busy:
            number = busy[step % len(busy)]
            balance.ended(number)
            under_way[number] -= 1
        else:
            number = balance.pick()
            assert under_way[number] == min(under_way)
            under_way[number] += 1
        balance.check()


def test_an_endless_loop_has_as_many_cases_as_fit_whole_before_the_deadline(plan: Plan) -> None:
    """15 x 2 s would fill the budget of 30 s to the brim, and setting up takes some of it."""
    planned = plan(cases=15, case_wall_ms=2_000, setup_ms=30, step_ms=20)
    program = students_program(planned)
    assert program.budget_ms == 30_000
    assert program.run_ns(random.Random(1), looping=True) == (30 + 14 * 2_020) * MS


def test_a_case_that_names_no_time_has_what_is_left(plan: Plan) -> None:
    planned = plan(cases=4, case_wall_ms=0, setup_ms=30, step_ms=0)
    program = students_program(planned)
    assert program.run_ns(random.Random(1), looping=True) == 30_000 * MS


def test_a_sound_program_runs_as_long_as_its_cases(plan: Plan) -> None:
    planned = plan(cases=3, case_time=parse_times("constant:100"), setup_ms=30, step_ms=20)
    assert students_program(planned).run_ns(random.Random(1), looping=False) == 390 * MS


def test_a_grading_request_carries_a_copy_or_a_case(plan: Plan) -> None:
    planned = plan(grading_cases=15, grading_wall_ms=2_000)
    assert graders_program(planned).budget_ms == 15 * 2_500
    assert graders_program(plan(grading_request="case")).budget_ms == 2_500


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.2, 6), (0.5, 15), (1, 30)])
def test_the_looping_ones_are_spread_evenly(share: float, count: int) -> None:
    looping = [is_looping(number, share) for number in range(30)]
    assert sum(looping) == count
    assert abs(sum(looping[:15]) - count / 2) <= 0.5


@pytest.mark.parametrize(
    ("text", "median_ms"),
    [
        ("constant:250", 250),
        ("uniform:100-300", 200),
        ("exponential:1000", 693),
        ("lognormal:150,0.8", 150),
    ],
)
def test_a_distribution_has_the_median_that_it_should(text: str, median_ms: float) -> None:
    chance = random.Random(1)
    drawn = [parse_times(text).draw_ns(chance) / MS for _ in range(4_001)]
    assert statistics.median(drawn) == pytest.approx(median_ms, rel=0.07)
    assert min(drawn) >= 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "constant",
        "constant:",
        "constant:-1",
        "constant:1e3",
        "uniform:3",
        "uniform:5-3",
        "exponential:0",
        "lognormal:100",
        "lognormal:0,1",
        "lognormal:100,11",
        "normal:1,2",
        "retry-after",
    ],
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(NotAllowedError):
        parse_times(text)


def test_a_word_is_taken_only_where_it_has_a_meaning() -> None:
    assert times(RETRY_AFTER).parse("retry-after") == RETRY_AFTER
    with pytest.raises(NotAllowedError):
        times().parse("retry-after")


def test_a_percentile_is_a_value_that_was_there() -> None:
    values = [number * MS for number in range(1, 21)]
    assert [percentile_ms(values, percent) for percent in (50, 95, 100)] == [10, 19, 20]
    assert percentile_ms([5 * MS], 50) == 5
    assert percentile_ms([], 50) is None
    assert percentile_ms([MS, NEVER_NS], 95) is None
