"""Every message that actors exchange.  Nobody asks; a reply is a message.

Who sends what to whom is in docs/architecture.md.  `reply` and `listener` fields are
callables that hand a value over to another thread without blocking.

A request is named by its *ticket*: unique among all requests in flight, made by whoever
submits it (`secrets.token_hex`, `uuid4`), never by the client.  The `request_id` may be the
client's own and so may come twice; it is for logs and answers, and nothing is keyed by it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gaoler.actors.policy.picture import USUAL_ROWS
from gaoler.sandbox.job import Event, Job, TaskResult


class Message(msgspec.Struct, frozen=True):
    """Base of all messages: immutable, compared by value.

    Each says `frozen` again, because type checkers do not see it inherited.
    """


# --- what a client of Admission gets -----------------------------------------------------


class Answer(Message, frozen=True):
    """A request's whole result: one list of task results for each step."""

    results: tuple[tuple[TaskResult, ...], ...]
    queued_ms: int
    setup_ms: int
    run_ms: int
    budget_ms: int


class QueueView(Message, frozen=True):
    """How the queue stood for a request that was refused for want of capacity."""

    waiting: int  # requests of its class that were waiting, itself not counted
    position: int  # 1: it was, or would have been, the next of its class
    eta_ms: int  # the estimate behind Retry-After


class Refusal(Message, frozen=True):
    """A request that gets no result.  `code` is one of docs/api.md's."""

    code: str
    detail: str
    reason: str | None = None
    retry_after_s: int | None = None
    queue: QueueView | None = None  # set with capacity_exhausted


Reply = Answer | Refusal


# --- to Admission ------------------------------------------------------------------------


class Submit(Message, frozen=True):
    """A checked request.  `job.deadline_ns` is 0 until the slots are granted."""

    ticket: str
    request_id: str  # for people: logs, answers, the live queue
    job: Job
    priority: str  # "interactive" or "grading"
    budget_ms: int
    wait: bool
    evaluation_id: str | None
    attempt_id: str | None
    subject: str | None
    purpose: str
    key_id: str  # which API key, "" without keys: the scope of the ids above
    reply: Callable[[Reply], None]


class Cancel(Message, frozen=True):
    """To Admission and to a Controller: the client went away, or the service stops."""

    ticket: str
    code: str = "cancelled"


class Shutdown(Message, frozen=True):
    """To Admission, SIGTERM: end what runs, refuse what waits and what comes.

    `done` is called once nothing is in flight any more; what is in quarantine does not count.
    """

    done: Callable[[], None] | None = None


class Drain(Message, frozen=True):
    """To Admission: refuse what comes; what waits and runs goes on.  `done` as in Shutdown."""

    done: Callable[[], None] | None = None


# --- EvaluationCap -----------------------------------------------------------------------


class Reserve(Message, frozen=True):
    """To EvaluationCap: a place below the cap of the evaluation, and the attempt."""

    ticket: str
    scope: str  # the API key's id
    evaluation_id: str | None
    attempt_id: str | None
    interactive: bool  # the evaluation's cap counts these alone
    reply: Callable[[Message], object]  # gets Reserved or NotReserved, exactly once


class Release(Message, frozen=True):
    """To EvaluationCap: the request is over.  No reply; unknown tickets are ignored."""

    ticket: str


class Reserved(Message, frozen=True):
    """To Admission: both are the request's until Release."""

    ticket: str


class NotReserved(Message, frozen=True):
    """To Admission: one of the two is in the way, and nothing is reserved."""

    ticket: str
    code: str  # attempt_in_flight, runner_unavailable
    detail: str
    reason: str | None = None


# --- SlotQueue ---------------------------------------------------------------------------


class Enqueue(Message, frozen=True):
    """To SlotQueue: `slots` and `memory_bytes` together, or a place in the queue."""

    ticket: str
    request_id: str  # for Inspect alone
    evaluation_id: str | None  # for Inspect alone
    priority: str
    slots: int
    memory_bytes: int
    budget_ms: int
    wait: bool
    reply: Callable[[Message], object]  # gets Granted or NotGranted, exactly once


class Withdraw(Message, frozen=True):
    """To SlotQueue: forget a waiting request.  No reply; other tickets are ignored.

    A Granted may be under way already: whoever withdrew gives such slots back.
    """

    ticket: str


class Granted(Message, frozen=True):
    """To Admission: the slots are the request's from `now_ns` on."""

    ticket: str
    now_ns: int


class NotGranted(Message, frozen=True):
    """To Admission: the request left the queue, or never entered it, without slots."""

    ticket: str
    code: str  # capacity_exhausted, limits_exceeded
    detail: str
    retry_after_s: int | None = None
    queue: QueueView | None = None


class SlotsFreed(Message, frozen=True):
    """To SlotQueue.  `memory` false: the slots only, the memory is still in quarantine."""

    ticket: str
    slots: bool = True
    memory: bool = True


class Tick(Message, frozen=True):
    """To SlotQueue from Alarm: an allowance may have run out."""


class Inspect(Message, frozen=True):
    """To Admission, and from there to the others: `reply` gets a consistent picture."""

    reply: Callable[[dict[str, object]], None]
    rows: int = USUAL_ROWS  # of those that wait


# --- Controller --------------------------------------------------------------------------


class Start(Message, frozen=True):
    """To a Controller, its first message: start the sandbox."""


class SandboxSaid(Message, frozen=True):
    """To a Controller from the sandbox's thread."""

    event: Event


class HardDeadline(Message, frozen=True):
    """To a Controller from Alarm: the jailer should have ended by now."""


class RunFinished(Message, frozen=True):
    """To Admission: the results are whole; the teardown goes on."""

    ticket: str
    results: tuple[tuple[TaskResult, ...], ...]
    exec_ns: int
    finished_ns: int


class RunFailed(Message, frozen=True):
    """To Admission: our fault, a cancel or the hard deadline; `code` says which."""

    ticket: str
    code: str
    stage: str
    errno: int = 0


class RunTornDown(Message, frozen=True):
    """To Admission: slots (and memory unless `quarantined`) are free again."""

    ticket: str
    quarantined: bool = False


# --- Alarm -------------------------------------------------------------------------------


class At(Message, frozen=True):
    """To Alarm: tell `message` by `tell` at `when_ns`.  The same `name` replaces."""

    name: str
    when_ns: int
    tell: Callable[[Message], object]
    message: Message


class Forget(Message, frozen=True):
    """To Alarm: the entry of that name, if there is one."""

    name: str


class TimeUp(Message, frozen=True):
    """To Alarm from its timer: something may be due."""


class Ping(Message, frozen=True):
    """To any actor: proof of life, for the internal health."""

    reply: Callable[[str], None]
