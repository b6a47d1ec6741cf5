"""A class must not take the service from everyone else: on the running service.

Times are scaled down by configuration and `budget_ms`.  What is held against them are bounds
that the rules give, stretched where all is slower, never how fast something was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.emulation import stretched
from tests.hosting import HttpAnswer, LiveService, eventually

Start = Callable[..., LiveService]

AGING_MS = int(stretched(500))
BUDGET_MS = int(stretched(1_500))
SLACK_MS = 2_000
TEARDOWN_MS = 10_000
LOOP = {"cmd": "/bin/sh", "args": ["-c", "while :; do :; done"]}
SHORT = {"cmd": "/bin/true"}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(80) as executor:
        yield executor


def send(service: LiveService, *steps: Any, **envelope: Any) -> HttpAnswer:
    return service.request(body={"steps": list(steps), **envelope})


def queue(service: LiveService, rows: int = 1_000) -> Any:
    return service.request("GET", f"/internal/queue?rows={rows}", internal=True).body


def waits(service: LiveService, count: int) -> None:
    eventually(
        lambda: sum(queue(service)["waiting_total"].values()) >= count, f"{count} are waiting"
    )


def runs(service: LiveService, count: int) -> None:
    eventually(lambda: len(queue(service)["running"]) >= count, f"{count} are running")


def queued_ms(answer: HttpAnswer) -> int:
    assert answer.status == 200, answer
    waited: int = answer.body["timing"]["queued_ms"]
    return waited


def test_students_with_endless_loops_do_not_keep_a_grading_request_from_its_turn(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(AGING_MS=str(AGING_MS))
    over = threading.Event()

    def student(number: int) -> list[int]:
        waited = []
        while not over.is_set():
            waited.append(queued_ms(send(service, LOOP, budget_ms=BUDGET_MS, subject=f"s{number}")))
        return waited

    students = [pool.submit(student, number) for number in range(4)]
    waits(service, 2)
    graded = [queued_ms(send(service, SHORT, priority="grading")) for _ in range(2)]
    over.set()
    worst = max(max(student.result()) for student in students)
    assert max(graded) <= AGING_MS + BUDGET_MS + SLACK_MS + TEARDOWN_MS
    print(f"grading waited {graded} ms, the worst interactive wait was {worst} ms")
    eventually(service.is_idle, "every slot is free")


def test_a_run_over_the_evaluations_cap_is_busy_and_costs_its_subject_nothing(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(SUBJECT_RUNS_PER_MINUTE="1")
    loops = [
        pool.submit(
            send, service, LOOP, evaluation_id="quiz", subject=f"s{number}", budget_ms=BUDGET_MS
        )
        for number in range(4)
    ]
    runs(service, 2)
    waits(service, 2)
    for _ in range(3):
        fifth = send(service, SHORT, evaluation_id="quiz", subject="fifth")
        assert fifth.status == 503, fifth
        assert (fifth.body["code"], fifth.body["reason"]) == ("runner_unavailable", "busy")
        assert int(fifth.headers["retry-after"]) >= 1
    assert queue(service)["caps"]["evaluations"][0]["requests"] == 4
    # Another evaluation has places of its own.
    other = pool.submit(send, service, SHORT, evaluation_id="other", subject="other")
    for loop in [*loops, other]:
        assert loop.result().status == 200
    assert send(service, SHORT, evaluation_id="quiz", subject="fifth").status == 200
    spent = send(service, SHORT, evaluation_id="quiz", subject="fifth")
    assert (spent.status, spent.body["code"]) == (429, "rate_limited")
    assert 1 <= int(spent.headers["retry-after"]) <= 60
    assert queue(service)["caps"] == {
        "per_evaluation": 4,
        "evaluations": [],
        "evaluations_total": 0,
        "attempts": 0,
    }


def test_every_try_counts_and_an_attempt_is_under_way_once(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(SUBJECT_TRIES_PER_MINUTE="2", RUNNER_RUNS_PER_EVALUATION="1")
    loop = pool.submit(
        send, service, LOOP, evaluation_id="quiz", attempt_id="7", budget_ms=BUDGET_MS
    )
    runs(service, 1)
    twice = send(service, SHORT, attempt_id="7", priority="grading")
    assert (twice.status, twice.body["code"]) == (409, "attempt_in_flight")
    codes = [
        send(service, SHORT, evaluation_id="quiz", subject="ann", purpose="try").body["code"]
        for _ in range(3)
    ]
    assert codes == ["runner_unavailable", "runner_unavailable", "rate_limited"]
    assert loop.result().status == 200
    assert send(service, SHORT, attempt_id="7").status == 200


@pytest.mark.parametrize("slots", [1, 2])
def test_a_flood_of_grading_makes_an_interactive_request_wait_for_one_of_them_at_most(
    start_service: Start, pool: ThreadPoolExecutor, slots: int
) -> None:
    service = start_service(MAX_CONCURRENCY=str(slots), AGING_MS="20000")
    graded: list[int] = []  # in the order of their ends

    def grade(number: int) -> None:
        assert send(service, SHORT, LOOP, priority="grading", budget_ms=200).status == 200
        graded.append(number)

    flood = [pool.submit(grade, number) for number in range(50)]
    waits(service, 40)
    for _ in range(3):
        before = len(graded)
        answer = send(service, SHORT)
        # One ran already; one more may end while the answer is on its way.
        assert len(graded) - before <= 2
        assert answer.status == 200
    for each in flood:
        each.result()


def test_a_wide_interactive_request_has_its_turn_though_aged_grading_always_waits(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    """Pins: each time it came again, another aged one went before it."""
    allowance_ms = int(stretched(2_000))
    service = start_service(
        AGING_MS="0", QUEUE_ALLOWANCE_INTERACTIVE_MS=str(allowance_ms), OVERALL_TIMEOUT_MS="300000"
    )
    over = threading.Event()

    def grade() -> None:
        while not over.is_set():
            answer = send(service, LOOP, priority="grading", budget_ms=int(stretched(2_600)))
            assert answer.status == 200, answer

    graders = [pool.submit(grade) for _ in range(3)]
    waits(service, 2)
    tries = 0
    while send(service, [SHORT, SHORT]).status != 200:
        tries += 1
        assert tries < 5, "it is never its turn"
    over.set()
    for grader in graders:
        grader.result()


def test_a_wide_request_starts_by_the_start_it_was_promised_and_the_gap_before_it_is_used(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service()
    long = pool.submit(send, service, LOOP, budget_ms=int(stretched(4_000)))
    runs(service, 1)
    wide = pool.submit(send, service, [SHORT, SHORT])
    waits(service, 1)
    (row,) = queue(service)["waiting"]
    assert row["slots"] == 2
    narrow = [send(service, SHORT, budget_ms=500) for _ in range(5)]
    assert max(map(queued_ms, narrow)) < row["promised_in_ms"]
    assert queue(service)["waiting_total"]["interactive"] == 1, "the wide one is still waiting"
    late = pool.submit(send, service, SHORT)  # its budget is longer than the gap
    waits(service, 2)
    assert queue(service)["counters"]["backfilled"] == 5
    assert queued_ms(wide.result()) <= row["age_ms"] + row["promised_in_ms"]
    assert long.result().status == late.result().status == 200


def test_a_refusal_says_where_one_stood_and_when_it_would_have_been_ones_turn(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(MAX_CONCURRENCY="1", QUEUE_LIMIT_INTERACTIVE="1")
    budget_ms = int(stretched(3_000))
    loops: list[Future[HttpAnswer]] = []
    for number in range(2):
        loops.append(pool.submit(send, service, LOOP, budget_ms=budget_ms))
        (runs if number == 0 else waits)(service, 1)
    for refused in (send(service, SHORT), send(service, SHORT, wait=False)):
        assert (refused.status, refused.body["code"]) == (503, "capacity_exhausted")
        assert refused.body["reason"] == "busy"
        told = refused.body["queue"]
        assert (told["waiting"], told["position"]) == (1, 2)
        assert budget_ms <= told["eta_ms"] <= 2 * budget_ms
        assert int(refused.headers["retry-after"]) == -(-told["eta_ms"] // 1_000)
    for loop in loops:
        assert loop.result().status == 200


def test_a_keys_rate_is_spent_on_arrival_also_by_what_is_refused(start_service: Start) -> None:
    service = start_service(RATE_LIMIT_PER_MINUTE="3")
    codes = [service.request(body={"steps": steps}).status for steps in ([SHORT], [], [SHORT])]
    assert codes == [200, 400, 200]
    refused = send(service, SHORT)
    assert (refused.status, refused.body["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert service.request("GET", "/api/v1/health").status == 200


def test_a_client_that_leaves_the_queue_gives_its_place_and_its_cap_back(
    start_service: Start, pool: ThreadPoolExecutor
) -> None:
    service = start_service(MAX_CONCURRENCY="1", RUNNER_RUNS_PER_EVALUATION="2")
    loop = pool.submit(send, service, LOOP, evaluation_id="quiz", budget_ms=2 * BUDGET_MS)
    runs(service, 1)
    with pytest.raises(TimeoutError):
        service.request(body={"steps": [SHORT], "evaluation_id": "quiz"}, timeout_s=stretched(0.3))
    eventually(lambda: not queue(service)["waiting"], "nobody waits")
    assert queue(service)["caps"]["evaluations"][0]["requests"] == 1
    assert send(service, SHORT, evaluation_id="quiz").status == 200
    assert loop.result().status == 200
