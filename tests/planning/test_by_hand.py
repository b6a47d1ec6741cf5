"""Small cases whose every number was worked out on paper."""

from __future__ import annotations

from gaoler.planning.report import summary, text
from gaoler.planning.scenario import Scenario
from gaoler.planning.simulation import Outcome, simulate
from tests.planning.conftest import MS, Come, Plan


def waits_ms(outcome: Outcome, priority: str) -> list[float]:
    return [wait / MS for wait in outcome.tally.accounts[priority].waits_ns]


def test_a_slot_is_free_only_after_the_teardown_and_interactive_goes_first(
    plan: Plan, come: Come
) -> None:
    log = [
        come(0, 100),
        come(50, 100, priority="grading"),
        come(60, 50),
    ]
    outcome = simulate(plan(setup_ms=5, teardown_ms=10), log)
    # 0 to 5+100, free at 115; 115 to 115+55, free at 180
    assert waits_ms(outcome, "interactive") == [0, 55]
    assert waits_ms(outcome, "grading") == [130]
    outcome.tally.check()


def test_an_aged_grading_request_goes_before_an_interactive_one(plan: Plan, come: Come) -> None:
    log = [come(0, 1_000), come(10, 500, priority="grading"), come(20, 1)]
    outcome = simulate(plan(aging_ms=100), log)
    assert waits_ms(outcome, "grading") == [990]
    assert waits_ms(outcome, "interactive") == [0, 1_480]


def test_the_policy_is_woken_when_a_request_ages(plan: Plan, come: Come) -> None:
    """A wide head keeps the free slot empty until the grading request passes it.

    The grading request's budget is too long for it to go earlier on any other ground.
    """
    log = [
        come(0, 1_000, budget_ms=1_000),
        come(10, 1, slots=2),
        come(20, 1, priority="grading", budget_ms=200_000),
    ]
    outcome = simulate(plan(slots=2, aging_ms=100), log)
    assert waits_ms(outcome, "grading") == [100]
    assert waits_ms(outcome, "interactive") == [0, 990]


def test_the_policy_is_woken_when_an_allowance_runs_out(plan: Plan, come: Come) -> None:
    log = [come(0, 1_000), come(10, 1), come(2_000, 1)]
    outcome = simulate(plan(allowance_interactive_ms=50), log)
    account = outcome.tally.accounts["interactive"]
    assert account.refused == {"expired": 1}
    assert (account.refused_at_once, account.refused_after_the_allowance) == (0, 1)
    assert account.waiting.area_ns() == 50 * MS


def test_a_full_queue_and_a_cap_refuse_at_once(plan: Plan, come: Come) -> None:
    log = [
        come(0, 100, evaluation_id="a"),
        come(1, 1, evaluation_id="b"),
        come(2, 1, evaluation_id="b"),
        come(3, 1, evaluation_id="a"),
        come(4, 1, evaluation_id="b", priority="grading"),
    ]
    outcome = simulate(plan(cap=1, queue_limit_interactive=1), log)
    account = outcome.tally.accounts["interactive"]
    assert account.refused == {"evaluation_cap": 2}
    assert waits_ms(outcome, "grading") == [97]  # no cap on grading
    full = simulate(plan(cap=3, queue_limit_interactive=1), log).tally.accounts["interactive"]
    assert full.refused == {"queue_full": 2}
    assert full.refused_at_once == 2


def test_the_cap_is_free_at_the_answer_though_the_slot_is_not(plan: Plan, come: Come) -> None:
    log = [come(0, 100, evaluation_id="a"), come(120, 1, evaluation_id="a")]
    outcome = simulate(plan(cap=1, teardown_ms=50), log)
    assert waits_ms(outcome, "interactive") == [0, 30]


def test_a_request_that_would_not_wait_is_refused(plan: Plan, come: Come) -> None:
    outcome = simulate(plan(), [come(0, 100), come(1, 1, wait=False)])
    assert outcome.tally.accounts["interactive"].refused == {"no_slots": 1}


def test_one_that_would_not_wait_never_started_and_is_no_wait(plan: Plan, come: Come) -> None:
    """Pins: it stood among the waits as one without end, and no search could hold any."""
    log = [come(0, 100), come(1, 1, wait=False), come(2, 1, wait=False, priority="grading")]
    found = summary(simulate(plan(), log))
    interactive, grading = (found["classes"][name] for name in ("interactive", "grading"))
    assert (interactive["wanted"], interactive["never_started"]) == (2, 1)
    assert interactive["to_start"] == {"median_ms": 0, "p95_ms": 0, "worst_ms": 0}
    assert (grading["wanted"], grading["never_started"], grading["would_not_wait"]) == (1, 1, 1)
    (row,) = (line for line in text(found).splitlines() if "to start, p95" in line)
    assert row.split()[-3:] == ["0.00", "s", "-"]


def test_one_that_would_have_waited_and_was_refused_waits_for_ever(plan: Plan, come: Come) -> None:
    log = [come(0, 100), come(1, 1)]
    found = summary(simulate(plan(queue_limit_interactive=0), log))["classes"]["interactive"]
    assert (found["wanted"], found["never_started"]) == (2, 1)
    assert found["to_start"]["worst_ms"] is None


def test_memory_holds_a_request_back_as_slots_do(plan: Plan, come: Come) -> None:
    log = [come(0, 100, memory_bytes=60), come(10, 1, memory_bytes=60)]
    tight = simulate(plan(slots=2, node_memory_bytes=100, request_memory_bytes=1), log)
    assert waits_ms(tight, "interactive") == [0, 90]
    assert waits_ms(simulate(plan(slots=2), log), "interactive") == [0, 0]


def test_a_run_ends_with_its_budget(plan: Plan, come: Come) -> None:
    log = [come(0, 90_000, budget_ms=500), come(1, 1)]
    assert waits_ms(simulate(plan(), log), "interactive") == [0, 499]


def test_slot_use_and_levels_are_those_of_the_time_simulated(plan: Plan, come: Come) -> None:
    log = [come(0, 250), come(0, 500), come(0, 400)]
    outcome = simulate(plan(slots=2, duration_ms=1_000), log)
    running = outcome.tally.accounts["interactive"].running
    assert running.area_ns() == (250 + 500 + 400) * MS
    assert outcome.tally.accounts["interactive"].waiting.area_ns() == 250 * MS
    means = running.means()
    assert len(means) == 400
    assert (means[0], means[199], means[200], means[259], means[260]) == (2, 2, 1, 1, 0)


def test_what_runs_past_the_end_counts_in_the_time_simulated_alone(plan: Plan, come: Come) -> None:
    outcome = simulate(plan(duration_ms=100), [come(50, 500), come(200, 1)])
    account = outcome.tally.accounts["interactive"]
    assert (account.sent, account.answered, account.answered_in_time) == (1, 1, 0)
    assert account.running.area_ns() == 50 * MS


def two_students(plan: Plan, **more: object) -> Scenario:
    from gaoler.planning.times import parse_times

    usual: dict[str, object] = {
        "students": 2,
        "looping_share": 0.0,
        "copies": 0,
        "cases": 2,
        "case_time": parse_times("constant:50"),
        "first_click": parse_times("constant:0"),
        "think_time": parse_times("constant:100"),
        "click_again": parse_times("constant:30"),
        "duration_ms": 250,
    }
    return plan(**usual | more)


def test_students_click_again_when_told_busy_and_the_delay_counts_all_tries(plan: Plan) -> None:
    """0 runs 0-100; 1 tries at 0, 30, 60, 90 and runs 120-220; 0 tries at 200 and 230."""
    outcome = simulate(two_students(plan, cap=1))
    account = outcome.tally.accounts["interactive"]
    assert account.refused == {"evaluation_cap": 5}
    assert [delay / MS for delay in account.delays_ns[:2]] == [0, 120]
    assert list(account.waits_ns) == [0, 0, 0]
    assert account.delays_ns[2] == 30 * MS
    assert (account.sent, account.answered) == (8, 3)


def test_a_student_who_never_clicks_again_has_no_start(plan: Plan) -> None:
    outcome = simulate(two_students(plan, cap=1, click_again="never", duration_ms=50))
    account = outcome.tally.accounts["interactive"]
    assert (account.sent, account.answered, account.unserved) == (2, 1, 1)


def test_a_delay_that_the_end_cuts_short_counts_with_what_it_had_come_to(plan: Plan) -> None:
    outcome = simulate(two_students(plan, cap=1, duration_ms=95))
    account = outcome.tally.accounts["interactive"]
    assert sorted(account.delays_ns) == [0, 95 * MS]
    assert account.unserved == 1


def test_a_grading_pass_sends_one_after_another_or_all_at_once(plan: Plan) -> None:
    from gaoler.planning.times import parse_times

    grading = {
        "students": 0,
        "copies": 3,
        "grading_cases": 2,
        "grading_looping_share": 0.0,
        "case_time": parse_times("constant:50"),
        "duration_ms": 10_000,
    }
    row = simulate(plan(**grading, grading_at_once=1))
    assert waits_ms(row, "grading") == [0, 0, 0]
    crowd = simulate(plan(**grading, grading_at_once=0))
    assert waits_ms(crowd, "grading") == [0, 100, 200]
    cases = simulate(plan(**grading, grading_at_once=0, grading_request="case"))
    assert waits_ms(cases, "grading") == [0, 50, 100, 150, 200, 250]
    for outcome in (row, crowd, cases):
        assert outcome.grading_pass is not None
        assert outcome.grading_pass.finished_ns == 300 * MS


def test_a_busy_grading_request_is_sent_again_after_what_the_service_says(plan: Plan) -> None:
    """The second finds the queue full at 0 and may expect its turn after 2.5 s: it waits 3."""
    from gaoler.planning.times import parse_times

    outcome = simulate(
        plan(
            students=0,
            copies=2,
            grading_cases=1,
            grading_looping_share=0.0,
            grading_at_once=0,
            queue_limit_grading=0,
            case_time=parse_times("constant:50"),
            duration_ms=10_000,
        )
    )
    account = outcome.tally.accounts["grading"]
    assert account.refused == {"queue_full": 1}
    assert list(account.delays_ns) == [0, 3_000 * MS]
