"""The actor that knows every request in flight, and gives each one its one reply.

A request's states and the ways between them:

    (new) --a--> RESERVING --k--> QUEUED --d--> RUNNING --e,f--> ENDING --h--> (gone)
      |              |              |              |               |
      b              j              c              g               i--> QUARANTINED --h--> (gone)
      v              v              v              v
    (gone)         (gone)         (gone)        RUNNING

    a  Submit; EvaluationCap is told Reserve.  A request that names no evaluation and no
       attempt has nothing to reserve and goes on with k at once
    b  Submit while closing, while there is nothing to run it, or while its subject's rate is
       spent: a Refusal
    k  Reserved; SlotQueue is told Enqueue
    j  NotReserved while reserving: a Refusal.  Cancel or Shutdown: a Refusal at once, and the
       entry goes with Reserved or NotReserved
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

Invariants: the reply is called exactly once, when the request is refused or leaves RUNNING;
cap and attempt are reserved until then, and released by `_settle` just before, so that the
next request of the same client finds them free; slots are held in RUNNING and ENDING, memory
in QUARANTINED as well; whatever was granted is given back exactly once, by `_give_back`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pykka

from gaoler.actors.clock import NS_PER_MS, Clock
from gaoler.actors.controller import Controller
from gaoler.actors.gathering import Gathering
from gaoler.actors.ledger import Entry, State
from gaoler.actors.life import OnFatal, Singleton, hand_over, tell
from gaoler.actors.messages import (
    Cancel,
    Drain,
    Enqueue,
    Granted,
    Inspect,
    NotGranted,
    NotReserved,
    Refusal,
    Release,
    Reply,
    Reserve,
    Reserved,
    RunFailed,
    RunFinished,
    RunTornDown,
    Shutdown,
    SlotsFreed,
    Start,
    Submit,
    Withdraw,
)
from gaoler.actors.policy.subjects import Subjects
from gaoler.actors.ports import Sandbox
from gaoler.actors.replies import (
    ASKED_FOR,
    Times,
    answer,
    failure_fields,
    not_reserved,
    rate_limited,
    refusal,
)

logger = logging.getLogger(__name__)


class Admission(Singleton):
    """The ledger of requests in flight, by ticket."""

    def __init__(
        self,
        sandbox: Sandbox,
        caps: pykka.ActorRef[Any],
        slot_queue: pykka.ActorRef[Any],
        alarm: pykka.ActorRef[Any],
        clock: Clock,
        subjects: Subjects,
        slack_ms: int,
        on_fatal: OnFatal,
    ) -> None:
        """`slack_ms`: RUNNER_TTL_SLACK_MS, how long past its deadline a jailer may be busy."""
        super().__init__(on_fatal)
        self._sandbox = sandbox
        self._caps = caps
        self._slot_queue = slot_queue
        self._alarm = alarm
        self._clock = clock
        self._subjects = subjects
        self._slack_ms = slack_ms
        self._ledger: dict[str, Entry] = {}
        self._closed: str | None = None  # the code that every new request is refused with
        self._when_idle: list[Callable[[], None]] = []
        self._counters: Counter[str] = Counter()  # replies by code, "answered" for answers

    def receive(self, message: object) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(ticket=ticket, code=code):
                self._cancel(self._ledger.get(ticket), code)
            case Reserved(ticket=ticket):
                self._reserved(self._in(State.RESERVING, ticket))
            case NotReserved():
                self._not_reserved(message)
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
            case Inspect():
                self._inspect(message)
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
            self._reply(submit, refusal("internal_error"))
            return
        now_ns = self._clock.now_ns()
        if (unwilling := self._unwilling(submit, now_ns)) is not None:
            self._reply(submit, unwilling)
            return
        entry = self._ledger[submit.ticket] = Entry(submit, now_ns)
        if entry.capped:
            tell(self._caps, self._reservation(submit))
        else:
            self._enqueue(entry)

    def _unwilling(self, submit: Submit, now_ns: int) -> Refusal | None:
        """Why the request is refused before anything is reserved, None where it is welcome."""
        if self._closed is not None:
            return refusal(self._closed)
        if self._sandbox.ready() is not None:
            return refusal("runner_unavailable")
        spent_s = self._subjects.take(submit.purpose, submit.key_id, submit.subject, now_ns)
        return None if spent_s is None else rate_limited(submit.purpose, spent_s)

    def _reservation(self, submit: Submit) -> Reserve:
        reference = self.actor_ref
        return Reserve(
            ticket=submit.ticket,
            scope=submit.key_id,
            evaluation_id=submit.evaluation_id,
            attempt_id=submit.attempt_id,
            interactive=submit.priority == "interactive",
            reply=lambda message: tell(reference, message),
        )

    def _not_reserved(self, message: NotReserved) -> None:
        entry = self._in(State.RESERVING, message.ticket)
        if entry is None:
            return
        del self._ledger[message.ticket]
        submit = entry.submit
        self._subjects.hand_back(submit.purpose, submit.key_id, submit.subject)
        self._settle(entry, not_reserved(message))

    def _reserved(self, entry: Entry | None) -> None:
        if entry is None:
            return
        if entry.replied:  # cancelled meanwhile; EvaluationCap has been told to release
            del self._ledger[entry.submit.ticket]
        else:
            self._enqueue(entry)

    def _enqueue(self, entry: Entry) -> None:
        entry.state = State.QUEUED
        submit, reference = entry.submit, self.actor_ref
        message = Enqueue(
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
        tell(self._slot_queue, message)

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

    def _start_controller(self, entry: Entry) -> pykka.ActorRef[Any]:
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
            times = Times(entry.submitted_ns, entry.granted_ns, entry.submit.budget_ms)
            self._settle(entry, answer(times, message))

    def _failed(self, message: RunFailed) -> None:
        entry = self._in(State.RUNNING, message.ticket)
        if entry is None:
            return
        level = logging.INFO if message.code in ASKED_FOR else logging.WARNING
        logger.log(level, "run failed", extra=failure_fields(entry.submit.request_id, message))
        entry.state = State.ENDING
        self._refuse(entry, "runner_unavailable" if message.code == "unavailable" else message.code)

    def _torn_down(self, message: RunTornDown) -> None:
        entry = self._ledger.get(message.ticket)
        if entry is None or entry.state in (State.RESERVING, State.QUEUED):
            return
        if entry.state is State.RUNNING:
            # A Controller never says this first; were it to, the client must not wait.
            self._refuse(entry, "internal_error")
        self._give_back(entry, quarantined=message.quarantined)

    def _give_back(self, entry: Entry, *, quarantined: bool) -> None:
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

    def _cancel(self, entry: Entry | None, code: str) -> None:
        if entry is None:
            return
        if entry.state is State.RESERVING:
            # It stays until EvaluationCap has answered: a run that is refused is not spent.
            self._refuse(entry, code)
        elif entry.state is State.QUEUED:
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
                self._reply(message, refusal(code))

    # --- the one reply --------------------------------------------------------------------

    def _refuse(self, entry: Entry, code: str) -> None:
        self._settle(entry, refusal(code))

    def _settle(self, entry: Entry, reply: Reply) -> None:
        """Say how the request ended, unless that was said already."""
        if entry.replied:
            return
        entry.replied = True
        if entry.capped:
            tell(self._caps, Release(entry.submit.ticket))
        self._reply(entry.submit, reply)

    def _reply(self, submit: Submit, reply: Reply) -> None:
        self._counters[reply.code if isinstance(reply, Refusal) else "answered"] += 1
        hand_over(submit.reply, reply)

    def _in(self, state: State, ticket: str) -> Entry | None:
        entry = self._ledger.get(ticket)
        return entry if entry is not None and entry.state is state else None

    # --- what can be seen -----------------------------------------------------------------

    def _inspect(self, message: Inspect) -> None:
        """One picture of all three of us.

        What the other two do they are told by us alone, and read it in order.  So what each
        shows when it reads this is what came of everything before it and of nothing after.
        """
        gathering = Gathering(("requests", "caps", "queue"), message.reply)
        tell(self._caps, Inspect(gathering.part("caps"), message.rows))
        tell(self._slot_queue, Inspect(gathering.part("queue"), message.rows))
        gathering.part("requests")(self._snapshot())

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
