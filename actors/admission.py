"""The actor that knows every request in flight, and gives each one its one reply.

A request's states and the ways between them:

    (new) --a--> QUEUED --d--> RUNNING --e,f--> ENDING --h--> (gone)
      |            |              |               |
      b            c              g               i--> QUARANTINED --h--> (gone)
      v            v              v
    (gone)       (gone)        RUNNING

    a  Submit; SlotQueue is told Enqueue
    b  Submit while closing, or while there is nothing to run it: a Refusal
    c  NotGranted, Cancel or Shutdown while queued: a Refusal; after the latter two
       SlotQueue is told Withdraw
    d  Granted: a Controller is started with the deadline.  Where that fails: a Refusal,
       and everything is given back
    e  RunFinished: the Answer.  Slots and memory are still held
    f  RunFailed: a Refusal, likewise
    g  Cancel or Shutdown while running: the Controller is told, and will say RunFailed
    h  RunTornDown: what is still held is given back
    i  RunTornDown(quarantined): the slots are given back, the memory is not

Every other pair of a state and a message is late or stray, and is ignored, but for one:
Granted for a ticket that is gone (it was cancelled while Granted was under way) gives the
slots back at once.

Invariants: the reply is called exactly once, when the request leaves QUEUED for good or
RUNNING; slots are held in RUNNING and ENDING, memory in QUARANTINED as well; whatever was
granted is given back exactly once, by `_give_back`.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pykka

from gaoler.actors.clock import NS_PER_MS, Clock
from gaoler.actors.controller import Controller
from gaoler.actors.life import OnFatal, Singleton, hand_over, tell
from gaoler.actors.messages import (
    Answer,
    Cancel,
    Drain,
    Enqueue,
    Granted,
    Inspect,
    NotGranted,
    Refusal,
    Reply,
    RunFailed,
    RunFinished,
    RunTornDown,
    Shutdown,
    SlotsFreed,
    Start,
    Submit,
    Withdraw,
)
from gaoler.actors.ports import Sandbox

logger = logging.getLogger(__name__)

# What a client reads; the stage and the errno are for the log alone.
_DETAILS = {
    "sandbox_setup_failed": "the sandbox could not be set up; nothing was run",
    "internal_error": "the request failed for a reason that is not its own",
    "runner_unavailable": "there is nothing to run the request at the moment",
    "cancelled": "the request was cancelled",
    "deadline_exceeded": "the request was still running past its deadline and was killed",
    "shutting_down": "the service is shutting down",
    "draining": "the service takes no new requests",
}

_ASKED_FOR = ("cancelled", "shutting_down")  # failures that are nobody's fault


class State(enum.Enum):
    """Where a request is; see the head of the module."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"
    QUARANTINED = "quarantined"


@dataclasses.dataclass(slots=True)
class _Entry:
    submit: Submit
    submitted_ns: int
    state: State = State.QUEUED
    granted_ns: int = 0
    controller: pykka.ActorRef[Any] | None = None
    replied: bool = False


class Admission(Singleton):
    """The ledger of requests in flight, by ticket."""

    def __init__(
        self,
        sandbox: Sandbox,
        slot_queue: pykka.ActorRef[Any],
        alarm: pykka.ActorRef[Any],
        clock: Clock,
        slack_ms: int,
        on_fatal: OnFatal,
    ) -> None:
        """`slack_ms`: RUNNER_TTL_SLACK_MS, how long past its deadline a jailer may be busy."""
        super().__init__(on_fatal)
        self._sandbox = sandbox
        self._slot_queue = slot_queue
        self._alarm = alarm
        self._clock = clock
        self._slack_ms = slack_ms
        self._ledger: dict[str, _Entry] = {}
        self._closed: str | None = None  # the code that every new request is refused with
        self._when_idle: list[Callable[[], None]] = []
        self._counters: Counter[str] = Counter()  # replies by code, "answered" for answers

    def receive(self, message: object) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(ticket=ticket, code=code):
                self._cancel(self._ledger.get(ticket), code)
            case Granted():
                self._run(message)
            case NotGranted():
                self._not_granted(message)
            case RunFinished():
                self._finished(message)
            case RunFailed():
                self._failed(message)
            case RunTornDown():
                self._torn_down(message)
            case Shutdown(done=done):
                self._close("shutting_down", done)
            case Drain(done=done):
                self._close(self._closed or "draining", done)
            case Inspect(reply=reply):
                hand_over(reply, self._snapshot())
            case _:
                self.ignore(message)
        self._tell_idle()

    def release(self, *, failed: bool) -> None:
        """Nobody is left waiting: every open request is refused, every Controller stopped."""
        code = "internal_error" if failed else "shutting_down"
        self._closed = code
        for entry in list(self._ledger.values()):
            self._refuse(entry, code)
            if entry.controller is not None:
                _stop(entry.controller)
        self._ledger.clear()
        self._refuse_unread(code)
        self._tell_idle()

    # --- a to d: until the slots are granted ----------------------------------------------

    def _submit(self, submit: Submit) -> None:
        if submit.ticket in self._ledger:
            # A slip of ours: tickets are made to be unique.  The first one must not suffer.
            self._reply(submit, _refusal("internal_error"))
            return
        if (code := self._unwilling()) is not None:
            self._reply(submit, _refusal(code))
            return
        self._ledger[submit.ticket] = _Entry(submit, self._clock.now_ns())
        tell(self._slot_queue, self._enqueue(submit))

    def _unwilling(self) -> str | None:
        """The code to refuse every new request with, None where they are welcome."""
        if self._closed is not None:
            return self._closed
        return None if self._sandbox.ready() is None else "runner_unavailable"

    def _enqueue(self, submit: Submit) -> Enqueue:
        reference = self.actor_ref
        return Enqueue(
            ticket=submit.ticket,
            request_id=submit.request_id,
            evaluation_id=submit.evaluation_id,
            priority=submit.priority,
            slots=submit.job.width,
            memory_bytes=submit.job.memory_bytes,
            budget_ms=submit.budget_ms,
            wait=submit.wait,
            reply=lambda message: tell(reference, message),
        )

    def _not_granted(self, message: NotGranted) -> None:
        entry = self._in(State.QUEUED, message.ticket)
        if entry is None:
            return
        del self._ledger[message.ticket]
        reason = "busy" if message.code == "capacity_exhausted" else None
        self._settle(
            entry,
            Refusal(message.code, message.detail, reason, message.retry_after_s, message.queue),
        )

    def _run(self, granted: Granted) -> None:
        if granted.ticket not in self._ledger:
            tell(self._slot_queue, SlotsFreed(granted.ticket))
            return
        entry = self._in(State.QUEUED, granted.ticket)
        if entry is None:
            return
        entry.state = State.RUNNING
        entry.granted_ns = granted.now_ns
        try:
            entry.controller = self._start_controller(entry)
        except RuntimeError as error:  # the host has no thread left for it
            logger.error(  # noqa: TRY400  the stack says nothing here
                "no controller", extra={"event": "no_controller", "error": str(error)}
            )
            self._refuse(entry, "internal_error")
            self._give_back(entry, quarantined=False)
            return
        tell(entry.controller, Start())

    def _start_controller(self, entry: _Entry) -> pykka.ActorRef[Any]:
        submit = entry.submit
        deadline_ns = entry.granted_ns + submit.budget_ms * NS_PER_MS
        reference = self.actor_ref
        return Controller.start(
            ticket=submit.ticket,
            job=dataclasses.replace(submit.job, deadline_ns=deadline_ns),
            sandbox=self._sandbox,
            clock=self._clock,
            alarm=self._alarm,
            report=lambda message: tell(reference, message),
            slack_ms=self._slack_ms,
        )

    # --- e to i: until nothing is held ----------------------------------------------------

    def _finished(self, message: RunFinished) -> None:
        entry = self._in(State.RUNNING, message.ticket)
        if entry is not None:
            entry.state = State.ENDING
            self._settle(entry, _answer(entry, message))

    def _failed(self, message: RunFailed) -> None:
        entry = self._in(State.RUNNING, message.ticket)
        if entry is None:
            return
        level = logging.INFO if message.code in _ASKED_FOR else logging.WARNING
        logger.log(level, "run failed", extra=_failure_fields(entry, message))
        entry.state = State.ENDING
        self._refuse(entry, "runner_unavailable" if message.code == "unavailable" else message.code)

    def _torn_down(self, message: RunTornDown) -> None:
        entry = self._ledger.get(message.ticket)
        if entry is None or entry.state is State.QUEUED:
            return
        if entry.state is State.RUNNING:
            # A Controller never says this first; were it to, the client must not wait.
            self._refuse(entry, "internal_error")
        self._give_back(entry, quarantined=message.quarantined)

    def _give_back(self, entry: _Entry, *, quarantined: bool) -> None:
        """The only place where something that was granted goes back to the queue.

        In QUARANTINED the slots are back already; to free nothing, or twice, is harmless.
        """
        ticket = entry.submit.ticket
        slots, memory = entry.state is not State.QUARANTINED, not quarantined
        tell(self._slot_queue, SlotsFreed(ticket, slots=slots, memory=memory))
        if quarantined:
            entry.state = State.QUARANTINED
        else:
            del self._ledger[ticket]

    # --- the end, from outside ------------------------------------------------------------

    def _cancel(self, entry: _Entry | None, code: str) -> None:
        if entry is None:
            return
        if entry.state is State.QUEUED:
            del self._ledger[entry.submit.ticket]
            tell(self._slot_queue, Withdraw(entry.submit.ticket))
            self._refuse(entry, code)
        elif entry.state is State.RUNNING and entry.controller is not None:
            tell(entry.controller, Cancel(entry.submit.ticket, code))

    def _close(self, code: str, done: Callable[[], None] | None) -> None:
        self._closed = code
        if done is not None:
            self._when_idle.append(done)
        if code == "shutting_down":
            for entry in list(self._ledger.values()):
                self._cancel(entry, code)

    def _tell_idle(self) -> None:
        """Quarantine may last for ever, so it keeps nobody from stopping."""
        if not self._when_idle:
            return
        if all(entry.state is State.QUARANTINED for entry in self._ledger.values()):
            waiting, self._when_idle = self._when_idle, []
            for done in waiting:
                hand_over(done)

    def _refuse_unread(self, code: str) -> None:
        """pykka drops what a stopped actor has not read; a Submit there has a client."""
        while not self.actor_inbox.empty():
            message = self.actor_inbox.get().message
            if isinstance(message, Submit):
                self._reply(message, _refusal(code))

    # --- the one reply --------------------------------------------------------------------

    def _refuse(self, entry: _Entry, code: str) -> None:
        self._settle(entry, _refusal(code))

    def _settle(self, entry: _Entry, reply: Reply) -> None:
        """Say how the request ended, unless that was said already."""
        if entry.replied:
            return
        entry.replied = True
        self._reply(entry.submit, reply)

    def _reply(self, submit: Submit, reply: Reply) -> None:
        self._counters[reply.code if isinstance(reply, Refusal) else "answered"] += 1
        hand_over(submit.reply, reply)

    def _in(self, state: State, ticket: str) -> _Entry | None:
        entry = self._ledger.get(ticket)
        return entry if entry is not None and entry.state is state else None

    def _snapshot(self) -> dict[str, object]:
        states = Counter(entry.state.value for entry in self._ledger.values())
        return {
            "in_flight": {state.value: states[state.value] for state in State},
            "closed": self._closed,
            "replies": dict(self._counters),
        }


def _stop(actor: pykka.ActorRef[Any]) -> None:
    """Ask an actor to stop, without waiting."""
    try:
        actor.stop(block=False)
    except pykka.ActorDeadError:
        pass


def _refusal(code: str) -> Refusal:
    retry_after_s = 1 if code == "runner_unavailable" else None
    return Refusal(code, _DETAILS.get(code, code), retry_after_s=retry_after_s)


def _answer(entry: _Entry, message: RunFinished) -> Answer:
    """The times of an answer: in the queue, until the first program started, from then on."""
    first_ns = message.exec_ns or message.finished_ns  # 0: no program was started
    return Answer(
        results=message.results,
        queued_ms=(entry.granted_ns - entry.submitted_ns) // NS_PER_MS,
        setup_ms=max(0, first_ns - entry.granted_ns) // NS_PER_MS,
        run_ms=max(0, message.finished_ns - first_ns) // NS_PER_MS,
        budget_ms=entry.submit.budget_ms,
    )


def _failure_fields(entry: _Entry, message: RunFailed) -> dict[str, str | int]:
    return {
        "event": "run_failed",
        "request_id": entry.submit.request_id,
        "code": message.code,
        "stage": message.stage,
        "errno": message.errno,
    }
