"""The actors as one thing: started leaf first, stopped in reverse.

Start it in the worker's lifespan start-up: actors do not survive a fork.  `start` and `stop`
block, and so does `ping_all`; from an event loop call them in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import pykka

from gaoler.actors.admission import Admission
from gaoler.actors.alarm import Alarm
from gaoler.actors.clock import Clock, MonotonicClock
from gaoler.actors.controller import Controller
from gaoler.actors.evaluation_cap import EvaluationCap
from gaoler.actors.life import OnFatal, hand_over, tell
from gaoler.actors.messages import (
    Cancel,
    Drain,
    Inspect,
    Ping,
    Refusal,
    Shutdown,
    Submit,
)
from gaoler.actors.policy.caps import Caps
from gaoler.actors.policy.memory import MemorySettings, grading_memory_bytes
from gaoler.actors.policy.picture import USUAL_ROWS
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import ClassRules, QueueRules
from gaoler.actors.policy.subjects import Subjects
from gaoler.actors.ports import Sandbox
from gaoler.actors.slot_queue import SlotQueue
from gaoler.sandbox.job import TEARDOWN_MS

# How long one actor may take to stop once it is idle: it has at most some messages to read.
STOP_LIMIT_S = 5.0


class CapacitySettings(MemorySettings, Protocol):
    """Those of `gaoler.config.settings.Settings` that the actors live by."""

    @property
    def aging_ms(self) -> int: ...
    @property
    def queue_limit_interactive(self) -> int: ...
    @property
    def queue_limit_grading(self) -> int: ...
    @property
    def queue_allowance_interactive_ms(self) -> int: ...
    @property
    def queue_allowance_grading_ms(self) -> int: ...
    @property
    def runner_ttl_slack_ms(self) -> int: ...
    @property
    def runner_runs_per_evaluation(self) -> int: ...
    @property
    def subject_runs_per_minute(self) -> int: ...
    @property
    def subject_tries_per_minute(self) -> int: ...


class LeftOverError(Exception):
    """Actors that were still there after everything was stopped; names in the message."""


def queue_rules(settings: CapacitySettings) -> QueueRules:
    """The queue's rules as the settings have them."""
    return QueueRules(
        slots=settings.max_concurrency,
        memory_bytes=settings.tasks_memory_bytes,
        grading_slots=settings.grading_runner_concurrency,
        aging_ms=settings.aging_ms,
        interactive=ClassRules(
            settings.queue_limit_interactive, settings.queue_allowance_interactive_ms
        ),
        grading=ClassRules(settings.queue_limit_grading, settings.queue_allowance_grading_ms),
        slack_ms=settings.runner_ttl_slack_ms,
        teardown_ms=TEARDOWN_MS,
        grading_memory_bytes=grading_memory_bytes(settings),
    )


class System:
    """The running actors.  All methods but `ping_all` and `stop` return at once."""

    def __init__(self) -> None:
        self._actors: list[pykka.ActorRef[Any]] = []  # in the order of their start
        self._admission: pykka.ActorRef[Any] | None = None

    def submit(self, submit: Submit) -> None:
        """Admit a request.  `submit.reply` is called once, from an actor's thread."""
        if self._admission is None or not tell(self._admission, submit):
            refusal = Refusal("shutting_down", "the service is shutting down")
            hand_over(submit.reply, refusal)

    def cancel(self, ticket: str, code: str = "cancelled") -> None:
        """End a request wherever it is.  Its reply is a Refusal with `code`, or was given."""
        if self._admission is not None:
            tell(self._admission, Cancel(ticket, code))

    def drain(self, done: Callable[[], None] | None = None) -> None:
        """Refuse new requests from now on; `done` is called when none is in flight."""
        if self._admission is not None:
            tell(self._admission, Drain(done))

    def shut_down(self) -> None:
        """End what runs and refuse what waits and what comes; `stop` waits for it."""
        if self._admission is not None:
            tell(self._admission, Shutdown())

    def inspect(self, reply: Callable[[dict[str, object]], None], rows: int = USUAL_ROWS) -> bool:
        """`reply` gets one picture of all actors; False where nobody is there to draw it.

        Its parts: "requests" (the ledger's counts), "caps", and "queue", in which at most
        `rows` of those who wait are shown.
        """
        return self._admission is not None and tell(self._admission, Inspect(reply, rows))

    def ping_all(self, timeout_s: float = 1.0) -> dict[str, bool]:
        """Which of the long-lived actors answered within the limit, by name.  Blocks."""
        answered = {actor: threading.Event() for actor in self._actors}
        for actor, event in answered.items():
            tell(actor, Ping(_setter(event)))
        waiter = _Deadline(timeout_s)
        return {
            actor.actor_class.__name__: event.wait(waiter.left_s())
            for actor, event in answered.items()
        }

    def stop(self, timeout_s: float = 10.0) -> None:
        """End what runs, wait for its teardown within the limit, and stop every actor.

        Idempotent.  LeftOverError where an actor did not stop.
        """
        idle = threading.Event()
        if self._admission is not None and tell(self._admission, Shutdown(idle.set)):
            idle.wait(timeout_s)
        self._admission = None
        left_over: list[str] = []
        while self._actors:
            left_over += _stop(self._actors.pop())
        # Admission asked its Controllers to stop as it ended itself.
        for controller in pykka.ActorRegistry.get_by_class(Controller):
            left_over += _stop(controller)
        if left_over:
            raise LeftOverError(", ".join(left_over))

    def _start(
        self, settings: CapacitySettings, sandbox: Sandbox, clock: Clock, on_fatal: OnFatal
    ) -> None:
        alarm = self._keep(Alarm.start(clock, on_fatal))
        policy = SlotPolicy(queue_rules(settings))
        slot_queue = self._keep(SlotQueue.start(policy, clock, alarm, on_fatal))
        caps = Caps(settings.runner_runs_per_evaluation)
        evaluation_cap = self._keep(EvaluationCap.start(caps, on_fatal))
        subjects = Subjects(settings.subject_runs_per_minute, settings.subject_tries_per_minute)
        admission = self._keep(
            Admission.start(
                sandbox=sandbox,
                caps=evaluation_cap,
                slot_queue=slot_queue,
                alarm=alarm,
                clock=clock,
                subjects=subjects,
                slack_ms=settings.runner_ttl_slack_ms,
                on_fatal=on_fatal,
            )
        )
        self._admission = admission

    def _keep(self, actor: pykka.ActorRef[Any]) -> pykka.ActorRef[Any]:
        self._actors.append(actor)
        return actor


def start(
    settings: CapacitySettings,
    sandbox: Sandbox,
    on_fatal: OnFatal,
    clock: Clock | None = None,
) -> System:
    """Start every long-lived actor.

    `on_fatal(actor's name, exception)` is called, from the dying actor's thread, when one of
    them died of an exception; it must make the worker process end and must not block.
    """
    system = System()
    try:
        system._start(settings, sandbox, clock or MonotonicClock(), on_fatal)
    except BaseException:
        system.stop(timeout_s=0.0)
        raise
    return system


def _setter(event: threading.Event) -> Callable[[str], None]:
    """A reply that notes that it came."""
    return lambda _: event.set()


class _Deadline:
    """One limit for several waits."""

    def __init__(self, timeout_s: float) -> None:
        self._clock = MonotonicClock()
        self._end_ns = self._clock.now_ns() + int(timeout_s * 1e9)

    def left_s(self) -> float:
        return max(0, self._end_ns - self._clock.now_ns()) / 1e9


def _stop(actor: pykka.ActorRef[Any]) -> list[str]:
    """Stop one actor; its name where it did not."""
    try:
        actor.stop(block=True, timeout=STOP_LIMIT_S)
    except pykka.Timeout:
        return [str(actor)]
    return []
