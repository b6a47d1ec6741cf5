"""The actor around one running request: it starts the sandbox and hears it to its end.

What it says to Admission, whatever happens: one of RunFinished and RunFailed, then
RunTornDown; a second RunTornDown where the first one spoke of quarantine.  That holds past
its own death: `_Relay` brings the end of the sandbox to Admission without it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pykka

from gaoler.actors.clock import NS_PER_MS, Clock
from gaoler.actors.life import Shell, Tell, tell
from gaoler.actors.messages import (
    At,
    Cancel,
    Forget,
    HardDeadline,
    RunFailed,
    RunFinished,
    RunTornDown,
    SandboxSaid,
    Start,
)
from gaoler.actors.ports import Running, Sandbox
from gaoler.sandbox.job import Event, Failed, Finished, Job, TaskDone, TaskResult, TornDown

logger = logging.getLogger(__name__)


class _Relay:
    """The sandbox's listener: brings events to the Controller, or past a dead one.

    A Controller can die with the sandbox's last event in its inbox, or about to be put
    there; pykka drops such messages in silence, and the slots would be gone for good.  So
    the relay keeps the last TornDown, and from `orphan` on it reports to Admission itself.
    The lock decides which of the two an event reaches.
    """

    def __init__(self, controller: pykka.ActorRef[Any], ticket: str, report: Tell) -> None:
        self._controller = controller
        self._ticket = ticket
        self._report = report
        self._lock = threading.Lock()
        self._orphaned = False
        self._torn_down: TornDown | None = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TornDown):
                self._torn_down = event
            if not self._orphaned:
                tell(self._controller, SandboxSaid(event))
            elif isinstance(event, TornDown):
                self._report(RunTornDown(self._ticket, event.quarantined))

    def orphan(self) -> None:
        """The Controller is dead.  A TornDown that it may have missed is reported again."""
        with self._lock:
            self._orphaned = True
            if self._torn_down is not None:
                self._report(RunTornDown(self._ticket, self._torn_down.quarantined))


class Controller(Shell):
    """One running request.

    Invariants: `_reported` is true once RunFinished or RunFailed was said; the alarm is set
    from the start until then; the actor stops itself after the last TornDown.
    """

    def __init__(
        self,
        ticket: str,
        job: Job,
        sandbox: Sandbox,
        clock: Clock,
        alarm: pykka.ActorRef[Any],
        report: Tell,
        slack_ms: int,
    ) -> None:
        """`job.deadline_ns` is set.  `report` tells Admission.  `slack_ms`: RUNNER_TTL_SLACK_MS."""
        super().__init__()
        self._ticket = ticket
        self._job = job
        self._sandbox = sandbox
        self._clock = clock
        self._alarm = alarm
        self._report = report
        self._slack_ms = slack_ms
        self._alarm_name = f"hard deadline {ticket}"
        self._relay = _Relay(self.actor_ref, ticket, report)
        self._running: Running | None = None  # None: nothing was started
        self._results: dict[tuple[int, int], TaskResult] = {}
        self._reported = False
        self._torn_down = False

    def receive(self, message: object) -> None:
        match message:
            case Start():
                self._start()
            case SandboxSaid(event=event):
                self._hear(event)
            case HardDeadline():
                self._fail("deadline_exceeded", "hard deadline")
            case Cancel(code=code):
                self._fail(code, "cancel")
            case _:
                self.ignore(message)

    def release(self, *, failed: bool) -> None:
        if self._torn_down:
            return
        if failed:
            self._fail("internal_error", "controller died")
        else:
            self._fail("shutting_down", "controller was stopped")
        self._cancel()
        if self._running is None:
            self._report(RunTornDown(self._ticket))
        else:
            self._relay.orphan()

    def _start(self) -> None:
        when_ns = self._job.deadline_ns + self._slack_ms * NS_PER_MS
        reference = self.actor_ref
        hard_deadline = At(
            self._alarm_name, when_ns, lambda message: tell(reference, message), HardDeadline()
        )
        tell(self._alarm, hard_deadline)
        self._running = self._sandbox.start(self._job, self._relay)

    def _hear(self, event: Event) -> None:
        if self._torn_down:
            return
        match event:
            case TaskDone():
                self._keep(event)
            case Finished(exec_ns=exec_ns):
                self._finish(exec_ns)
            case Failed(code=code, stage=stage, errno=errno):
                self._fail(code, stage, errno)
            case TornDown(quarantined=quarantined):
                self._end(quarantined)

    def _keep(self, done: TaskDone) -> None:
        """A result is taken once, and only for a task that the job has."""
        if self._reported:
            return
        steps = self._job.steps
        known = 0 <= done.step < len(steps) and 0 <= done.task < len(steps[done.step].tasks)
        if not known or (done.step, done.task) in self._results:
            self._fail("internal_error", f"unexpected result {done.step}/{done.task}")
            return
        self._results[done.step, done.task] = done.result

    def _finish(self, exec_ns: int) -> None:
        if self._reported:
            return
        try:
            results = tuple(
                tuple(self._results[number, task] for task in range(len(step.tasks)))
                for number, step in enumerate(self._job.steps)
            )
        except KeyError as missing:
            self._fail("internal_error", f"finished without result {missing}")
            return
        self._conclude()
        self._report(RunFinished(self._ticket, results, exec_ns, self._clock.now_ns()))

    def _fail(self, code: str, stage: str, errno: int = 0) -> None:
        """The request has failed, unless it has ended already; what still runs is ended."""
        if self._reported:
            return
        self._conclude()
        self._report(RunFailed(self._ticket, code, stage, errno))
        self._cancel()

    def _conclude(self) -> None:
        self._reported = True
        self._results.clear()  # they can be large, and quarantine can be long
        tell(self._alarm, Forget(self._alarm_name))

    def _cancel(self) -> None:
        if self._running is None:
            return
        try:
            self._running.cancel()
        except Exception:
            # The jailer's own deadline still ends the sandbox; that it is heard to its
            # end matters more than that it ends at once.
            logger.exception("cancel failed", extra={"event": "cancel_failed"})

    def _end(self, quarantined: bool) -> None:
        self._fail("internal_error", "torn down without an end")
        self._report(RunTornDown(self._ticket, quarantined))
        if not quarantined:
            self._torn_down = True
            self.stop()
