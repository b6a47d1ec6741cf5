"""Starting and stopping the actors, and what happens when one of them dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from gaoler.actors import system as actor_system
from gaoler.actors.admission import Admission
from gaoler.actors.alarm import Alarm
from gaoler.actors.evaluation_cap import EvaluationCap
from gaoler.actors.fake_sandbox import Held, make_job, make_task
from gaoler.actors.life import Singleton
from gaoler.actors.slot_queue import SlotQueue

if TYPE_CHECKING:
    from gaoler.tests.actors.conftest import Kill, Service

LIMIT_S = 5.0


def test_every_long_lived_actor_answers_a_ping(service: Service) -> None:
    assert service.system.ping_all(LIMIT_S) == {
        "Alarm": True,
        "SlotQueue": True,
        "EvaluationCap": True,
        "Admission": True,
    }


def test_stopping_refuses_what_waits_and_kills_what_runs(service: Service) -> None:
    service.sandbox.script("held", Held())
    running = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    waiting = service.submit()
    service.settle()
    service.system.stop(LIMIT_S)
    assert running.refusal().code == "shutting_down"
    assert waiting.refusal().code == "shutting_down"
    assert run.cancelled.is_set()
    assert pykka.ActorRegistry.get_all() == []


def test_stopping_waits_for_the_teardown_of_what_ran(service: Service) -> None:
    service.sandbox.script("held", Held())
    service.sandbox.teardown = "held"
    running = service.submit(make_job(make_task("held")))
    run = service.sandbox.run(0)
    stopped = threading.Thread(target=service.system.stop)
    stopped.start()
    assert run.cancelled.wait(LIMIT_S)
    assert running.refusal().code == "shutting_down"
    assert stopped.is_alive()
    run.tear_down()
    stopped.join(LIMIT_S)
    assert not stopped.is_alive()


def test_stopping_gives_up_on_a_teardown_that_does_not_end(service: Service) -> None:
    service.sandbox.script("held", Held())
    service.sandbox.hears_cancel = False
    running = service.submit(make_job(make_task("held")))
    service.sandbox.run(0)
    service.system.stop(timeout_s=0.05)
    assert running.refusal().code == "shutting_down"
    assert pykka.ActorRegistry.get_all() == []


def test_a_sandbox_in_quarantine_does_not_keep_the_service_from_stopping(
    service: Service,
) -> None:
    service.sandbox.teardown = "quarantined"
    service.submit().answer()
    service.settle()
    service.system.stop(timeout_s=60.0)
    assert pykka.ActorRegistry.get_all() == []


def test_a_sandbox_in_quarantine_does_not_keep_a_drain_from_being_done(
    service: Service,
) -> None:
    service.sandbox.teardown = "quarantined"
    service.submit().answer()
    drained = threading.Event()
    service.system.drain(drained.set)
    assert drained.wait(LIMIT_S)


def test_a_request_that_admission_did_not_read_before_its_end_is_refused(
    service: Service,
) -> None:
    with service.held(Admission) as admission:
        stopped = admission.stop(block=False)
        unread = service.submit()
    stopped.get(timeout=LIMIT_S)
    assert unread.refusal().code == "shutting_down"


def test_stopping_twice_is_harmless_and_later_requests_are_refused(service: Service) -> None:
    service.system.stop(LIMIT_S)
    service.system.stop(LIMIT_S)
    assert service.submit().refusal().code == "shutting_down"
    service.system.cancel("anything")
    assert service.system.ping_all() == {}
    assert not service.system.inspect(lambda picture: None)


def test_draining_finishes_what_is_in_flight_and_refuses_what_comes(service: Service) -> None:
    service.sandbox.script("held", Held())
    drained = threading.Event()
    running = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    waiting = service.submit()
    service.system.drain(drained.set)
    assert service.submit().refusal().code == "draining"
    service.settle()
    assert not drained.is_set()
    run.complete()
    running.answer()
    waiting.answer()
    assert drained.wait(LIMIT_S)


def test_draining_an_idle_service_is_done_at_once(service: Service) -> None:
    drained = threading.Event()
    service.system.drain(drained.set)
    assert drained.wait(LIMIT_S)


def test_what_admission_shows_counts_replies_by_code(service: Service) -> None:
    service.submit().answer()
    service.sandbox.problem = "no warden"
    service.submit().refusal()
    service.settle()
    assert service.whole_picture()["requests"]["replies"] == {
        "answered": 1,
        "runner_unavailable": 1,
    }


@pytest.mark.parametrize("actor", [Alarm, SlotQueue, EvaluationCap, Admission])
def test_a_singleton_that_dies_of_an_exception_is_fatal(
    service: Service, kill: Kill, actor: type[Singleton]
) -> None:
    kill(actor)
    name, error = service.fatal.get(timeout=LIMIT_S)
    assert name == actor.__name__
    assert isinstance(error, RuntimeError)
    service.system.stop(timeout_s=0.05)


def test_an_admission_that_dies_leaves_no_client_waiting(service: Service, kill: Kill) -> None:
    service.sandbox.script("held", Held())
    running = service.submit(make_job((make_task("held"), make_task("held"))))
    run = service.sandbox.run(0)
    waiting = service.submit()
    service.settle()
    kill(Admission)
    assert running.refusal().code == "internal_error"
    assert waiting.refusal().code == "internal_error"
    assert run.cancelled.wait(LIMIT_S)
    service.system.stop(timeout_s=0.05)


def test_a_start_that_fails_half_way_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, start_service: Callable[..., Service]
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(SlotQueue, "start", broken)
    with pytest.raises(RuntimeError, match="no"):
        start_service()
    assert pykka.ActorRegistry.get_all() == []


def test_an_actor_that_does_not_stop_is_an_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_system, "STOP_LIMIT_S", 0.05)
    left_over = pytest.raises(actor_system.LeftOverError, match="SlotQueue")
    with service.held(SlotQueue) as stuck, left_over:
        service.system.stop(LIMIT_S)
    assert stuck.actor_stopped.wait(LIMIT_S)
