"""A request's way through the actors, on every way out: one reply, and everything back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pykka
import pytest

from gaoler.actors.admission import Admission
from gaoler.actors.controller import Controller
from gaoler.actors.fake_sandbox import (
    Dies,
    Ends,
    Held,
    SetupFails,
    Unavailable,
    completed,
    make_job,
    make_task,
)
from gaoler.actors.messages import HardDeadline, QueueView, Reply
from gaoler.sandbox.job import Failed, Finished, TaskDone, TornDown

if TYPE_CHECKING:
    from gaoler.tests.actors.conftest import Kill, Service

ALL_FREE = (2, 4 * 1024**3)
MS = 1_000_000


@pytest.fixture(autouse=True)
def _held_is_scripted(service: Service) -> None:
    service.sandbox.script("held", Held())


# --- the good way -------------------------------------------------------------------------


def test_an_answer_has_the_results_by_step_and_task(service: Service) -> None:
    service.sandbox.script("false", Ends(completed(exit_code=1)))
    job = make_job(make_task("true"), (make_task("false"), make_task("true")))
    answer = service.submit(job).answer()
    codes = [[result.exit_code for result in step] for step in answer.results]
    assert codes == [[0], [1, 0]]
    assert service.free() == ALL_FREE


def test_the_deadline_is_the_budget_counted_from_the_grant(service: Service) -> None:
    first = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    second = service.submit(budget_ms=7_000)
    service.settle()
    service.clock.advance_ms(3_000)
    run.complete()
    first.answer()
    answer = second.answer()
    assert service.sandbox.run(1).job.deadline_ns == service.clock.now_ns() + 7_000 * MS
    assert (answer.queued_ms, answer.budget_ms) == (3_000, 7_000)


def test_an_answer_tells_how_long_the_program_ran(service: Service) -> None:
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    service.clock.advance_ms(1_200)
    run.complete()
    answer = client.answer()
    assert (answer.queued_ms, answer.setup_ms, answer.run_ms) == (0, 0, 1_200)


def test_the_answer_comes_before_the_teardown_and_the_slots_after_it(service: Service) -> None:
    service.sandbox.teardown = "held"
    job = make_job((make_task("true"), make_task("true")))
    service.submit(job).answer()
    assert service.free()[0] == 0
    service.sandbox.run(0).tear_down()
    assert service.free() == ALL_FREE


def test_two_requests_in_flight_may_have_the_same_request_id(service: Service) -> None:
    first = service.submit(make_job(make_task("held")), request_id="same")
    service.sandbox.run(0)  # so that the second one's is number 1
    second = service.submit(make_job(make_task("held")), request_id="same")
    service.sandbox.run(1)
    service.system.cancel(first.ticket)
    assert first.refusal().code == "cancelled"
    service.sandbox.run(1).complete()
    second.answer()
    assert service.free() == ALL_FREE


def test_a_ticket_that_is_in_use_is_refused_and_the_first_one_goes_on(service: Service) -> None:
    first = service.submit(make_job(make_task("held")), ticket="twice")
    run = service.sandbox.run(0)
    assert service.submit(ticket="twice").refusal().code == "internal_error"
    run.complete()
    first.answer()
    assert service.free() == ALL_FREE


# --- refused ------------------------------------------------------------------------------


def test_who_will_not_wait_is_refused_as_busy_with_the_state_of_the_queue(
    service: Service,
) -> None:
    running = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    refusal = service.submit(wait=False).refusal()
    assert (refusal.code, refusal.reason) == ("capacity_exhausted", "busy")
    assert refusal.retry_after_s == 5
    assert refusal.queue == QueueView(waiting=0, position=1, eta_ms=5_000)
    run.complete()
    running.answer()


def test_a_request_whose_allowance_runs_out_is_refused_as_busy(service: Service) -> None:
    running = service.submit(make_job((make_task("held"), make_task("held"))), budget_ms=60_000)
    run = service.sandbox.run(0)
    waiting = service.submit()
    service.settle()
    service.clock.advance_ms(20_000)
    refusal = waiting.refusal()
    assert (refusal.code, refusal.reason) == ("capacity_exhausted", "busy")
    assert refusal.retry_after_s == 40
    run.complete()
    running.answer()
    assert service.free() == ALL_FREE


def test_a_request_wider_than_its_class_may_be_is_refused(service: Service) -> None:
    job = make_job((make_task("true"), make_task("true")))
    refusal = service.submit(job, priority="grading").refusal()
    assert (refusal.code, refusal.reason) == ("limits_exceeded", None)


def test_nothing_is_queued_while_there_is_no_runner(service: Service) -> None:
    service.sandbox.problem = "the warden does not answer"
    refusal = service.submit().refusal()
    assert refusal.code == "runner_unavailable"
    assert "warden" not in refusal.detail
    service.sandbox.problem = None
    service.submit().answer()


def test_an_aged_grading_request_goes_before_the_interactive_head(
    start_service: Callable[..., Service],
) -> None:
    service = start_service(max_concurrency=1)
    service.sandbox.script("held", Held())
    first = make_job(make_task("held"))
    clients = [service.submit(first, budget_ms=60_000, request_id="first")]
    run = service.sandbox.run(0)
    clients.append(service.submit(priority="grading", request_id="grading"))
    service.settle()
    service.clock.advance_ms(10_000)
    clients.append(service.submit(request_id="interactive"))
    assert service.waiting() == ["grading", "interactive"]
    run.complete()
    for client in clients:
        client.answer()
    assert [run.job.request_id for run in service.sandbox.started] == [
        "first",
        "grading",
        "interactive",
    ]


# --- cancelled ----------------------------------------------------------------------------


def test_a_queued_request_that_is_cancelled_leaves_the_queue(service: Service) -> None:
    running = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    waiting = service.submit(request_id="waiting")
    assert service.waiting() == ["waiting"]
    service.system.cancel(waiting.ticket)
    assert waiting.refusal().code == "cancelled"
    assert service.waiting() == []
    run.complete()
    running.answer()
    service.settle()
    assert len(service.sandbox.started) == 1


def test_a_running_request_that_is_cancelled_is_killed_and_its_slots_come_back(
    service: Service,
) -> None:
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    service.system.cancel(client.ticket)
    assert client.refusal().code == "cancelled"
    assert run.cancelled.wait(5)
    assert service.free() == ALL_FREE


def test_slots_that_were_granted_to_a_request_just_cancelled_come_back(
    service: Service,
) -> None:
    # Admission is held up, so that the Cancel is in its inbox before Granted can be.
    with service.held(Admission):
        client = service.submit()
        service.system.cancel(client.ticket)
    assert client.refusal().code == "cancelled"
    assert service.free() == ALL_FREE
    assert service.sandbox.started == []


def test_cancelling_twice_late_or_a_stranger_is_harmless(service: Service) -> None:
    client = service.submit()
    client.answer()
    service.system.cancel(client.ticket)
    service.system.cancel("stranger")
    service.submit().answer()


def test_a_cancel_during_the_teardown_does_not_reply_again(service: Service) -> None:
    service.sandbox.teardown = "held"
    client = service.submit()
    client.answer()
    service.system.cancel(client.ticket)
    service.settle()
    service.sandbox.run(0).tear_down()
    assert service.free() == ALL_FREE


# --- failed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (SetupFails("mounts", 28), "sandbox_setup_failed"),
        (Dies("supervisor", 9), "internal_error"),
        (Unavailable(), "runner_unavailable"),
    ],
)
def test_a_failed_sandbox_is_a_refusal_without_its_stage(
    service: Service, act: SetupFails | Dies | Unavailable, code: str
) -> None:
    service.sandbox.script("broken", act)
    refusal = service.submit(make_job(make_task("broken"))).refusal()
    assert refusal.code == code
    assert "mounts" not in refusal.detail
    assert "supervisor" not in refusal.detail
    assert service.free() == ALL_FREE


def test_a_jailer_that_overruns_its_deadline_and_slack_is_killed_with_504(
    service: Service,
) -> None:
    client = service.submit(make_job(make_task("held")), budget_ms=5_000)
    run = service.sandbox.run(0)
    service.settle()
    service.clock.advance_ms(6_999)
    service.settle()
    assert client.replies.empty()
    service.clock.advance_ms(1)
    assert client.refusal().code == "deadline_exceeded"
    assert run.cancelled.wait(5)
    assert service.free() == ALL_FREE


def test_a_sandbox_that_hears_nothing_keeps_its_slots_but_not_its_client(
    service: Service,
) -> None:
    service.sandbox.hears_cancel = False
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    service.settle()
    service.clock.advance_ms(7_000)
    assert client.refusal().code == "deadline_exceeded"
    assert service.free()[0] == 1
    run.die()
    assert service.free() == ALL_FREE


def test_the_hard_deadline_is_taken_back_when_the_results_are_whole(service: Service) -> None:
    service.sandbox.teardown = "held"
    service.submit(budget_ms=1_000).answer()
    service.settle()
    service.clock.advance_ms(10_000)
    service.settle()
    assert not service.sandbox.run(0).cancelled.is_set()
    service.sandbox.run(0).tear_down()


def test_quarantine_gives_the_slots_back_first_and_the_memory_later(service: Service) -> None:
    service.sandbox.teardown = "quarantined"
    job = make_job(make_task("true"), memory_bytes=1024)
    service.submit(job).answer()
    assert service.free() == (ALL_FREE[0], ALL_FREE[1] - 1024)
    service.sandbox.run(0).tear_down()
    assert service.free() == ALL_FREE


@pytest.mark.parametrize(
    "events",
    [
        [Finished(0)],
        [TaskDone(0, 0, completed()), TaskDone(0, 0, completed())],
        [TaskDone(0, 5, completed())],
        [TaskDone(-1, 0, completed())],
        [TornDown()],
    ],
    ids=["no result", "a result twice", "no such task", "no such step", "no end"],
)
def test_a_sandbox_that_breaks_its_promises_is_an_internal_error(
    service: Service, events: list[Finished | TaskDone | TornDown]
) -> None:
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    for event in events:
        run.emit(event)
    assert client.refusal().code == "internal_error"
    service.settle()
    run.die()
    assert service.free() == ALL_FREE


def test_events_after_the_end_change_nothing(service: Service) -> None:
    service.sandbox.teardown = "held"
    client = service.submit()
    client.answer()
    run = service.sandbox.run(0)
    for event in (Failed("internal_error", "late"), Finished(0), TaskDone(0, 0, completed())):
        run.emit(event)
    run.tear_down()
    assert service.free() == ALL_FREE


# --- deaths -------------------------------------------------------------------------------


def test_a_controller_that_dies_fails_its_request_and_the_slots_come_back(
    service: Service, kill: Kill
) -> None:
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    service.settle()
    kill(Controller)
    assert client.refusal().code == "internal_error"
    assert run.cancelled.wait(5)
    assert service.free() == ALL_FREE
    service.submit().answer()


def test_slots_of_a_dead_controller_stay_taken_until_its_sandbox_is_torn_down(
    service: Service, kill: Kill
) -> None:
    service.sandbox.teardown = "held"
    client = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    service.settle()
    kill(Controller)
    assert client.refusal().code == "internal_error"
    assert run.cancelled.wait(5)
    assert service.free()[0] == 1
    run.tear_down()
    assert service.free() == ALL_FREE


def test_a_controller_that_dies_in_the_teardown_does_not_reply_again(
    service: Service, kill: Kill
) -> None:
    service.sandbox.teardown = "quarantined"
    service.submit(make_job(make_task("true"), memory_bytes=1024)).answer()
    service.settle()
    kill(Controller)
    assert service.free()[0] == ALL_FREE[0]
    service.sandbox.run(0).tear_down()
    assert service.free() == ALL_FREE


def test_a_sandbox_whose_start_raises_costs_one_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise OSError("no descriptors left")

    with monkeypatch.context() as patch:
        patch.setattr(service.sandbox, "start", broken)
        assert service.submit().refusal().code == "internal_error"
        assert service.free() == ALL_FREE
    service.submit().answer()


def test_a_host_without_threads_costs_one_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(pykka.ThreadingActor, "_start_actor_loop", broken)
        assert service.submit().refusal().code == "internal_error"
        assert service.free() == ALL_FREE
    service.submit().answer()


def test_a_client_whose_reply_raises_does_not_end_the_service(service: Service) -> None:
    def closed(reply: Reply) -> None:
        raise RuntimeError("Event loop is closed")

    service.submit(reply=closed)
    service.submit().answer()
    assert service.free() == ALL_FREE


def test_a_message_that_no_actor_knows_is_ignored(service: Service) -> None:
    for actor in pykka.ActorRegistry.get_all():
        actor.tell("gossip")
        actor.tell(HardDeadline())
    service.submit().answer()
