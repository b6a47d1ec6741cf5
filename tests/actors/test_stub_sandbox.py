"""The sandbox that runs nothing: what it says, and that the actors take it for a sandbox."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gaoler.actors import system as actor_system
from gaoler.actors.fake_sandbox import make_job, make_task
from gaoler.actors.messages import Answer, Reply, Submit
from gaoler.actors.ports import Sandbox
from gaoler.actors.stub_sandbox import StubSandbox
from gaoler.actors.system import System
from gaoler.config.settings import Settings
from gaoler.sandbox.job import Collected, Event, Finished, Job, TaskDone, TaskResult, TornDown

LIMIT_S = 5.0
WELL = TaskResult("completed", exit_code=0)
FALSE = make_task("/bin/false")


def told(job: Job) -> list[Event]:
    """All that a run says, before and after a cancel."""
    events: list[Event] = []
    sandbox: Sandbox = StubSandbox()
    assert sandbox.ready() is None
    sandbox.start(job, events.append).cancel()
    return events


def test_every_task_of_every_step_ends_well_then_the_run_then_the_sandbox() -> None:
    assert told(make_job(FALSE, (FALSE, FALSE), stop_on_failure=True)) == [
        TaskDone(0, 0, WELL),
        TaskDone(1, 0, WELL),
        TaskDone(1, 1, WELL),
        Finished(exec_ns=0),
        TornDown(),
    ]


def test_a_file_that_is_to_be_collected_is_missing() -> None:
    task = dataclasses.replace(FALSE, collect=("out", "folder/other"))
    done = told(make_job(task))[0]
    missing = (Collected("out", error="missing"), Collected("folder/other", error="missing"))
    assert done == TaskDone(0, 0, dataclasses.replace(WELL, files=missing))


@pytest.fixture
def system() -> Iterator[System]:
    """The actors with one slot, over a stub."""
    settings = Settings(max_concurrency=1, tasks_memory_bytes=2**30, queue_limit_interactive=64)
    running = actor_system.start(settings, StubSandbox(), lambda name, error: None)
    yield running
    running.stop(LIMIT_S)


def submit(system: System, number: int, replies: queue.SimpleQueue[Reply]) -> None:
    system.submit(
        Submit(
            ticket=f"ticket-{number}",
            request_id="request",
            job=make_job(FALSE),
            priority="interactive",
            budget_ms=1,
            wait=True,
            evaluation_id=None,
            attempt_id=None,
            subject=None,
            purpose="run",
            key_id="",
            reply=replies.put,
        )
    )


def test_requests_pass_through_the_one_slot_and_give_it_back(system: System) -> None:
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    for number in range(50):
        submit(system, number, replies)
    for _ in range(50):
        reply = replies.get(timeout=LIMIT_S)
        assert isinstance(reply, Answer), reply
        assert (reply.results, reply.run_ms) == (((WELL,),), 0)
    drained = threading.Event()
    system.drain(drained.set)
    assert drained.wait(LIMIT_S)
    pictures: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    assert system.inspect(pictures.put)
    assert pictures.get(timeout=LIMIT_S)["queue"]["slots"] == {"total": 1, "free": 1}
