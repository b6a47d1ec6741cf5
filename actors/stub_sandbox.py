"""The sandbox of `RUNNER_MODE=stub`: it runs nothing, and says that all went well.

For people who write clients, and for their tests: whatever happens to a request before its
sandbox is real, and so is the way of its answer.  The HTTP room marks every result.
"""

from __future__ import annotations

from collections.abc import Callable

from gaoler.sandbox.job import Collected, Event, Finished, Job, Task, TaskDone, TaskResult, TornDown


class StubRun:
    """A run that was over before anybody could end it."""

    def cancel(self) -> None:
        """As the port says of a sandbox that has finished: nothing follows."""


class StubSandbox:
    """Fits `actors.ports.Sandbox`.

    There is no thread in here: the whole run is told within `start`.  So a request holds its
    slots for no longer than the actors take to hear that, and no limit, deadline or cancel can
    meet a task.
    """

    def ready(self) -> str | None:
        return None

    def start(self, job: Job, listener: Callable[[Event], None]) -> StubRun:
        for number, step in enumerate(job.steps):
            for index, task in enumerate(step.tasks):
                listener(TaskDone(number, index, _result(task)))
        listener(Finished(exec_ns=0))  # no program was started
        listener(TornDown())
        return StubRun()


def _result(task: Task) -> TaskResult:
    """What a program that does nothing leaves behind: no output, and no file."""
    files = tuple(Collected(path, error="missing") for path in task.collect)
    return TaskResult("completed", exit_code=0, files=files)
