"""What every sandbox promises, real or not: the contract of `gaoler.actors.ports.Sandbox`.

Each test runs against the fake of `gaoler.actors.fake_sandbox`, and against the real one
where a fixture `real_sandbox` (in tests/conftest.py) yields it.  So the tasks are programs
that every host has, and the fake knows what these do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from gaoler.actors.fake_sandbox import (
    Act,
    Ends,
    FakeSandbox,
    Held,
    completed,
    make_job,
    make_task,
)
from gaoler.actors.ports import Running, Sandbox
from gaoler.sandbox.job import (
    Event,
    Failed,
    Finished,
    Job,
    Task,
    TaskDone,
    TaskResult,
    TornDown,
)
from tests.emulation import stretched

LIMIT_S = stretched(20.0)  # of every wait; the real sandbox may run on a slow host
MS = 1_000_000
LONG_S = 30  # a task of that length is there to be cancelled

Factory = Callable[[], Sandbox]


# --- the two sandboxes --------------------------------------------------------------------


def fake() -> FakeSandbox:
    """The fake, with the programs that these tests use."""
    sandbox = FakeSandbox()
    sandbox.script("/bin/sleep", _sleep)
    sandbox.script("/bin/sh", _sh)
    sandbox.script("/bin/echo", lambda task: Ends(completed(stdout=_line(task.args))))
    sandbox.script("/bin/cat", lambda task: Ends(completed(stdout=task.stdin)))
    return sandbox


def _line(words: tuple[str, ...]) -> bytes:
    return " ".join(words).encode() + b"\n"


def _sleep(task: Task) -> Act:
    seconds = float(task.args[0])
    return Held() if seconds >= LONG_S else Ends(completed(), takes_ms=int(seconds * 1000))


def _sh(task: Task) -> Act:
    """The shell knows one command: exit."""
    return Ends(completed(exit_code=int(task.args[1].removeprefix("exit "))))


@pytest.fixture(params=["fake", "real"])
def sandbox_factory(request: pytest.FixtureRequest) -> Factory:
    """Makes the sandbox under test; the real one is one for all."""
    if request.param == "fake":
        return fake
    try:
        real: Sandbox = request.getfixturevalue("real_sandbox")
    except pytest.FixtureLookupError:
        pytest.skip("there is no fixture real_sandbox: the real sandbox is not plugged in")
    return lambda: real


# --- a listener ---------------------------------------------------------------------------


class Listener:
    """Gathers the events of one run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_torn_down(self) -> list[Event]:
        """All events, once the last one is there."""
        with self._changed:
            gone = self._changed.wait_for(lambda: TornDown() in self.events, LIMIT_S)
            assert gone, f"not torn down: {self.events}"
            return list(self.events)

    def wait_count(self, count: int) -> None:
        """Return when that many events have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, LIMIT_S)

    def results(self) -> dict[tuple[int, int], TaskResult]:
        done = [event for event in self.wait_torn_down() if isinstance(event, TaskDone)]
        results = {(event.step, event.task): event.result for event in done}
        assert len(results) == len(done), "a task had two results"
        return results


def in_ms(milliseconds: int) -> int:
    return time.monotonic_ns() + milliseconds * MS


def job(
    *steps: Task | tuple[Task, ...], deadline_ms: int = 20_000, stop_on_failure: bool = False
) -> Job:
    return make_job(*steps, deadline_ns=in_ms(deadline_ms), stop_on_failure=stop_on_failure)


def start(sandbox: Sandbox, what: Job) -> tuple[Running, Listener]:
    listener = Listener()
    return sandbox.start(what, listener), listener


def sh(command: str) -> Task:
    return make_task("/bin/sh", "-c", command)


TRUE = make_task("/bin/true")
LONG = make_task("/bin/sleep", str(LONG_S), wall_ms=15_000)


# --- the contract -------------------------------------------------------------------------


def test_it_is_ready(sandbox_factory: Factory) -> None:
    assert sandbox_factory().ready() is None


def test_results_come_first_then_the_end_then_the_teardown(sandbox_factory: Factory) -> None:
    _, listener = start(sandbox_factory(), job(TRUE, TRUE, TRUE))
    events = listener.wait_torn_down()
    assert [type(event) for event in events] == [TaskDone] * 3 + [Finished, TornDown]
    assert events[-1] == TornDown(quarantined=False)


def test_every_task_has_its_result_by_step_and_task(sandbox_factory: Factory) -> None:
    codes = [(3,), (4, 5), (6,)]
    steps = [tuple(sh(f"exit {code}") for code in step) for step in codes]
    _, listener = start(sandbox_factory(), job(*steps))
    results = listener.results()
    assert {place: result.exit_code for place, result in results.items()} == {
        (0, 0): 3,
        (1, 0): 4,
        (1, 1): 5,
        (2, 0): 6,
    }
    assert all(result.outcome == "completed" for result in results.values())
    assert all(result.signal is None for result in results.values())


def test_steps_run_in_order(sandbox_factory: Factory) -> None:
    _, listener = start(sandbox_factory(), job(TRUE, (TRUE, TRUE), TRUE))
    steps = [event.step for event in listener.wait_torn_down() if isinstance(event, TaskDone)]
    assert steps == [0, 1, 1, 2]


def test_output_comes_back_as_bytes(sandbox_factory: Factory) -> None:
    _, listener = start(sandbox_factory(), job(make_task("/bin/echo", "grüß", "dich")))
    assert listener.results()[0, 0].stdout == "grüß dich\n".encode()


def test_stdin_reaches_the_task(sandbox_factory: Factory) -> None:
    data = bytes(range(256)) * 100
    _, listener = start(sandbox_factory(), job(make_task("/bin/cat", stdin=data)))
    assert listener.results()[0, 0].stdout == data


def test_finished_says_when_the_first_program_was_started(sandbox_factory: Factory) -> None:
    before_ns = time.monotonic_ns()
    _, listener = start(sandbox_factory(), job(TRUE))
    (finished,) = [event for event in listener.wait_torn_down() if isinstance(event, Finished)]
    assert before_ns <= finished.exec_ns <= time.monotonic_ns()


def test_a_task_past_its_wall_limit_has_timed_out(sandbox_factory: Factory) -> None:
    _, listener = start(sandbox_factory(), job(make_task("/bin/sleep", "10", wall_ms=200)))
    result = listener.results()[0, 0]
    assert (result.outcome, result.reason, result.timed_out) == ("timed_out", "wall", True)
    assert (result.exit_code, result.signal) == (None, None)


# --- cancel -------------------------------------------------------------------------------


def test_a_cancel_ends_a_run_with_failed_and_then_the_teardown(sandbox_factory: Factory) -> None:
    running, listener = start(sandbox_factory(), job(TRUE, LONG))
    listener.wait_count(1)
    running.cancel()
    done, failed, torn_down = listener.wait_torn_down()
    assert isinstance(done, TaskDone)
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"
    assert torn_down == TornDown()


def test_a_cancel_right_after_the_start_is_heard(sandbox_factory: Factory) -> None:
    running, listener = start(sandbox_factory(), job(LONG))
    running.cancel()
    failed, torn_down = listener.wait_torn_down()
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"
    assert torn_down == TornDown()


def test_cancelling_again_and_after_the_end_changes_nothing(sandbox_factory: Factory) -> None:
    running, listener = start(sandbox_factory(), job(LONG))
    running.cancel()
    running.cancel()
    before = listener.wait_torn_down()
    running.cancel()
    assert listener.events == before
    assert [type(event) for event in before] == [Failed, TornDown]


def test_a_cancel_after_the_end_is_harmless(sandbox_factory: Factory) -> None:
    sandbox = sandbox_factory()
    running, listener = start(sandbox, job(TRUE))
    before = listener.wait_torn_down()
    running.cancel()
    # another run goes all the way through, so a late event of the first would have come
    start(sandbox, job(TRUE))[1].wait_torn_down()
    assert listener.events == before
    assert [type(event) for event in before] == [TaskDone, Finished, TornDown]


def test_cancels_from_many_threads_make_one_end(sandbox_factory: Factory) -> None:
    running, listener = start(sandbox_factory(), job(LONG))
    threads = [threading.Thread(target=running.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [type(event) for event in listener.wait_torn_down()] == [Failed, TornDown]


# --- what is not started ------------------------------------------------------------------


def test_after_a_failure_later_steps_are_not_started_where_that_was_asked_for(
    sandbox_factory: Factory,
) -> None:
    steps = (TRUE, sh("exit 1")), (TRUE, TRUE), TRUE
    _, listener = start(sandbox_factory(), job(*steps, stop_on_failure=True))
    results = listener.results()
    assert results[0, 0].succeeded
    assert results[0, 1].exit_code == 1
    for place in ((1, 0), (1, 1), (2, 0)):
        assert results[place].outcome == "not_started"
        assert results[place].reason == "earlier_step_failed"
        assert not results[place].timed_out


def test_after_a_failure_the_rest_goes_on_otherwise(sandbox_factory: Factory) -> None:
    _, listener = start(sandbox_factory(), job(sh("exit 1"), TRUE))
    assert listener.results()[1, 0].succeeded


def test_a_task_is_not_started_where_its_promised_time_does_not_fit(
    sandbox_factory: Factory,
) -> None:
    slow = make_task("/bin/sleep", "0.5", wall_ms=2_000)
    _, listener = start(sandbox_factory(), job(slow, slow, deadline_ms=2_300))
    results = listener.results()
    assert results[0, 0].succeeded
    assert (results[1, 0].outcome, results[1, 0].reason) == ("not_started", "budget")
    assert results[1, 0].timed_out
    assert (results[1, 0].exit_code, results[1, 0].signal) == (None, None)


def test_a_task_without_a_promise_gets_what_time_is_left(sandbox_factory: Factory) -> None:
    slow = make_task("/bin/sleep", "10")
    _, listener = start(sandbox_factory(), job(slow, slow, deadline_ms=500))
    results = listener.results()
    assert (results[0, 0].outcome, results[0, 0].reason) == ("timed_out", "wall")
    assert (results[1, 0].outcome, results[1, 0].reason) == ("not_started", "budget")


def test_nothing_is_started_past_the_deadline(sandbox_factory: Factory) -> None:
    what = make_job(TRUE, (TRUE, TRUE), deadline_ns=time.monotonic_ns())
    _, listener = start(sandbox_factory(), what)
    results = listener.results()
    assert len(results) == 3
    assert {(result.outcome, result.reason) for result in results.values()} == {
        ("not_started", "budget")
    }


# --- side by side -------------------------------------------------------------------------


def test_concurrent_runs_do_not_mix(sandbox_factory: Factory) -> None:
    sandbox = sandbox_factory()
    runs = [
        start(sandbox, job(make_task("/bin/echo", f"{number}"), sh(f"exit {number}")))
        for number in range(8)
    ]
    for number, (_, listener) in enumerate(runs):
        results = listener.results()
        assert results[0, 0].stdout == f"{number}\n".encode()
        assert results[1, 0].exit_code == number


def test_cancelling_one_run_leaves_the_others_alone(sandbox_factory: Factory) -> None:
    sandbox = sandbox_factory()
    cancelled, cancelled_listener = start(sandbox, job(LONG))
    _, other_listener = start(sandbox, job(make_task("/bin/sleep", "0.2")))
    cancelled.cancel()
    cancelled_listener.wait_torn_down()
    assert other_listener.results()[0, 0].succeeded
