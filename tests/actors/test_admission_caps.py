"""Caps and rates on a request's way through the actors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gaoler.actors.evaluation_cap import EvaluationCap
from gaoler.actors.fake_sandbox import Held, make_job, make_task
from gaoler.actors.messages import Reply

if TYPE_CHECKING:
    from tests.actors.conftest import Kill, Service

WIDE = make_job((make_task("held"), make_task("held")))


def caps(service: Service) -> dict[str, Any]:
    service.settle()
    picture: dict[str, Any] = service.whole_picture()["caps"]
    return picture


def test_over_the_evaluations_cap_a_request_is_refused_as_busy_before_it_is_queued(
    start_service: Callable[..., Service],
) -> None:
    service = start_service(runner_runs_per_evaluation=2)
    service.sandbox.script("held", Held())
    running = service.submit(WIDE, evaluation_id="quiz")
    run = service.sandbox.run(0)
    waiting = service.submit(evaluation_id="quiz")
    refused = service.submit(evaluation_id="quiz").refusal()
    assert (refused.code, refused.reason) == ("runner_unavailable", "busy")
    assert "evaluation_id" in refused.detail
    other = service.submit(evaluation_id="another")
    run.complete()
    for client in (running, waiting, other):
        client.answer()
    assert caps(service)["evaluations"] == []


def test_an_attempt_that_is_under_way_is_a_conflict(service: Service) -> None:
    service.sandbox.script("held", Held())
    first = service.submit(WIDE, attempt_id="7")
    run = service.sandbox.run(0)
    assert service.submit(attempt_id="7", priority="grading").refusal().code == "attempt_in_flight"
    other_key = service.submit(attempt_id="7", key_id="other")
    run.complete()
    first.answer()
    other_key.answer()


def test_cap_and_attempt_are_free_when_the_answer_is_there(service: Service) -> None:
    """Whoever has their answer may send the next request at once: from the very reply."""
    clients = [service.submit(attempt_id="7", evaluation_id="quiz")]
    replies: list[Reply] = []
    done = threading.Event()

    def next_one(reply: Reply) -> None:
        replies.append(reply)
        if len(replies) < 5:
            service.submit(attempt_id="8", reply=next_one)
        else:
            done.set()

    service.submit(attempt_id="8", reply=next_one)
    assert done.wait(5)
    assert all(not hasattr(reply, "code") for reply in replies), replies
    clients[0].answer()


@pytest.mark.parametrize("way", ["cancel queued", "cancel running", "expire", "no slots", "fail"])
def test_cap_and_attempt_are_given_back_on_every_way_out(
    start_service: Callable[..., Service], way: str
) -> None:
    service = start_service(runner_runs_per_evaluation=1)
    service.sandbox.script("held", Held())
    blocker = service.submit(WIDE, budget_ms=60_000)
    run = service.sandbox.run(0)
    mine = functools.partial(service.submit, evaluation_id="quiz", attempt_id="7")
    if way == "no slots":
        assert mine(wait=False).refusal().code == "capacity_exhausted"
    elif way == "expire":
        client = mine()
        service.settle()
        service.clock.advance_ms(20_000)
        assert client.refusal().code == "capacity_exhausted"
    elif way == "cancel queued":
        client = mine()
        service.system.cancel(client.ticket)
        assert client.refusal().code == "cancelled"
    run.complete()
    blocker.answer()
    if way in ("cancel running", "fail"):
        client = mine(WIDE)
        run = service.sandbox.run(1)
        if way == "fail":
            run.die()
        else:
            service.system.cancel(client.ticket)
        client.refusal()
    assert caps(service) == {
        "per_evaluation": 1,
        "evaluations": [],
        "evaluations_total": 0,
        "attempts": 0,
    }
    mine().answer()


def test_a_request_that_is_cancelled_while_it_reserves_leaves_nothing(service: Service) -> None:
    with service.held(EvaluationCap):
        client = service.submit(evaluation_id="quiz", attempt_id="7")
        service.system.cancel(client.ticket)
        assert client.refusal().code == "cancelled"
    assert caps(service)["evaluations"] == []
    assert service.free() == (2, 4 * 1024**3)
    assert service.sandbox.started == []


def test_a_refusal_by_the_cap_spends_no_run_of_the_subject_and_every_try(
    start_service: Callable[..., Service],
) -> None:
    service = start_service(
        runner_runs_per_evaluation=1, subject_runs_per_minute=2, subject_tries_per_minute=2
    )
    service.sandbox.script("held", Held())
    held = service.submit(WIDE, evaluation_id="quiz", subject="ann")
    run = service.sandbox.run(0)
    for _ in range(5):
        refused = service.submit(evaluation_id="quiz", subject="ann").refusal()
        assert refused.code == "runner_unavailable"
    tries = [
        service.submit(evaluation_id="quiz", subject="ann", purpose="try").refusal()
        for _ in range(3)
    ]
    codes = [refusal.code for refusal in tries]
    assert codes == ["runner_unavailable", "runner_unavailable", "rate_limited"]
    assert tries[-1].retry_after_s == 30
    run.complete()
    held.answer()
    service.submit(subject="ann").answer()  # the second of two
    spent = service.submit(subject="ann").refusal()
    assert (spent.code, spent.retry_after_s) == ("rate_limited", 30)
    service.submit(subject="bob").answer()


def test_a_hang_up_while_it_reserves_spends_no_run_that_the_caps_would_refuse(
    start_service: Callable[..., Service],
) -> None:
    """Pins: the token of a request that left before its refusal was never handed back."""
    service = start_service(subject_runs_per_minute=2)
    service.sandbox.script("held", Held())
    holder = service.submit(WIDE, attempt_id="7")
    run = service.sandbox.run(0)
    for _ in range(4):
        with service.held(EvaluationCap):
            client = service.submit(attempt_id="7", subject="bob")
            service.system.cancel(client.ticket)
            assert client.refusal().code == "cancelled"
        service.settle()
    run.complete()
    holder.answer()
    for _ in range(2):
        service.submit(subject="bob").answer()
    assert service.submit(subject="bob").refusal().code == "rate_limited"
    assert service.whole_picture()["requests"]["in_flight"]["reserving"] == 0


def test_the_one_picture_agrees_with_itself(service: Service) -> None:
    service.sandbox.script("held", Held())
    running = service.submit(WIDE, evaluation_id="quiz", attempt_id="1")
    run = service.sandbox.run(0)
    waiting = [service.submit(evaluation_id="quiz") for _ in range(2)]
    service.settle()
    picture = service.whole_picture()
    flight = picture["requests"]["in_flight"]
    assert (flight["running"], flight["queued"]) == (1, 2)
    assert len(picture["queue"]["running"]) == 1
    assert picture["queue"]["waiting_total"] == {"interactive": 2, "grading": 0}
    assert picture["caps"]["evaluations"][0]["requests"] == 3
    assert picture["caps"]["attempts"] == 1
    run.complete()
    for client in (running, *waiting):
        client.answer()


def test_a_cap_that_dies_is_fatal_and_its_clients_are_answered(
    service: Service, kill: Kill
) -> None:
    kill(EvaluationCap)
    name, _ = service.fatal.get(timeout=5)
    assert name == "EvaluationCap"
    lost = service.submit(evaluation_id="quiz")
    service.system.stop(timeout_s=0.05)
    assert lost.refusal().code == "shutting_down"
