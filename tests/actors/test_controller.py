"""What a Controller says to Admission and to Alarm, seen from their side."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from gaoler.actors.clock import VirtualClock
from gaoler.actors.controller import Controller
from gaoler.actors.fake_sandbox import Dies, FakeRun, FakeSandbox, Held, make_job, make_task
from gaoler.actors.messages import (
    At,
    Cancel,
    Forget,
    HardDeadline,
    Message,
    RunFailed,
    RunFinished,
    RunTornDown,
    Start,
)
from gaoler.sandbox.job import TornDown

LIMIT_S = 5.0
MS = 1_000_000


class Recorder(pykka.ThreadingActor):
    """Stands in for Alarm, and keeps what it is told."""

    use_daemon_thread = True

    def __init__(self, told: queue.SimpleQueue[Message]) -> None:
        super().__init__()
        self._told = told

    def on_receive(self, message: Message) -> None:
        self._told.put(message)


class Stage:
    """A Controller of one held task, with recorders around it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sandbox = FakeSandbox(self.clock)
        self.sandbox.script("held", Held())
        self.alarmed: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.reported: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.alarm = Recorder.start(self.alarmed)
        self.deadline_ns = self.clock.now_ns() + 1_000 * MS

    def start(self, cmd: str = "held") -> tuple[pykka.ActorRef[Any], FakeRun]:
        controller = Controller.start(
            ticket="t",
            job=make_job(make_task(cmd), deadline_ns=self.deadline_ns),
            sandbox=self.sandbox,
            clock=self.clock,
            alarm=self.alarm,
            report=self.reported.put,
            slack_ms=2_000,
        )
        controller.tell(Start())
        return controller, self.sandbox.run(0)

    def next_report(self) -> Message:
        return self.reported.get(timeout=LIMIT_S)

    def next_alarm(self) -> Message:
        return self.alarmed.get(timeout=LIMIT_S)


@pytest.fixture
def stage(_nothing_is_left: None) -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.alarm.stop()
    assert stage.reported.empty(), "Admission was told more than it should have been"


def ended(controller: pykka.ActorRef[Any]) -> bool:
    return controller.actor_stopped.wait(LIMIT_S)


def test_it_reports_the_end_then_the_teardown_and_stops_itself(stage: Stage) -> None:
    controller, run = stage.start()
    run.complete()
    assert isinstance(stage.next_report(), RunFinished)
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_the_hard_deadline_is_the_deadline_and_the_slack_and_is_taken_back(stage: Stage) -> None:
    controller, run = stage.start()
    alarm = stage.next_alarm()
    assert isinstance(alarm, At)
    assert alarm.when_ns == stage.deadline_ns + 2_000 * MS
    assert alarm.message == HardDeadline()
    run.complete()
    assert stage.next_alarm() == Forget(alarm.name)
    assert isinstance(stage.next_report(), RunFinished)
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_a_cancel_is_reported_with_the_code_it_came_with(stage: Stage) -> None:
    controller, _ = stage.start()
    controller.tell(Cancel("t", "shutting_down"))
    assert stage.next_report() == RunFailed("t", "shutting_down", "cancel")
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_a_failure_carries_its_stage_and_errno(stage: Stage) -> None:
    stage.sandbox.script("boom", Dies("init", 12))
    controller, _ = stage.start("boom")
    assert stage.next_report() == RunFailed("t", "internal_error", "init", 12)
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_a_teardown_without_an_end_is_a_failure_first(stage: Stage) -> None:
    controller, run = stage.start()
    run.emit(TornDown())
    failed = stage.next_report()
    assert isinstance(failed, RunFailed)
    assert failed.code == "internal_error"
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_in_quarantine_it_lives_until_the_second_teardown(stage: Stage) -> None:
    stage.sandbox.teardown = "quarantined"
    controller, run = stage.start()
    run.complete()
    assert isinstance(stage.next_report(), RunFinished)
    assert stage.next_report() == RunTornDown("t", quarantined=True)
    assert controller.is_alive()
    run.tear_down()
    assert stage.next_report() == RunTornDown("t")
    assert ended(controller)


def test_one_that_is_stopped_before_its_start_gives_everything_back(stage: Stage) -> None:
    controller = Controller.start(
        ticket="t",
        job=make_job(make_task("held")),
        sandbox=stage.sandbox,
        clock=stage.clock,
        alarm=stage.alarm,
        report=stage.reported.put,
        slack_ms=0,
    )
    controller.stop()
    failed = stage.next_report()
    assert isinstance(failed, RunFailed)
    assert failed.code == "shutting_down"
    assert stage.next_report() == RunTornDown("t")
