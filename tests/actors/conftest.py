"""What the tests of the actors share: a service with a fake sandbox and a virtual clock."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pykka
import pytest

from gaoler.actors import system as actor_system
from gaoler.actors.clock import VirtualClock
from gaoler.actors.controller import Controller
from gaoler.actors.fake_sandbox import FakeSandbox, make_job, make_task
from gaoler.actors.life import tell
from gaoler.actors.messages import Answer, Ping, Refusal, Reply, Submit
from gaoler.sandbox.job import Job

LIMIT_S = 5.0  # of every wait; a test that needs it has failed


@dataclass(frozen=True)
class Capacity:
    """Settings, as far as the actors look at them."""

    max_concurrency: int = 2
    grading_runner_concurrency: int = 1
    tasks_memory_bytes: int = 4 * 1024**3
    aging_ms: int = 10_000
    queue_limit_interactive: int = 4
    queue_limit_grading: int = 4
    queue_allowance_interactive_ms: int = 20_000
    queue_allowance_grading_ms: int = 60_000
    runner_ttl_slack_ms: int = 2_000
    runner_runs_per_evaluation: int = 4
    memory_limit_bytes: int = 512 * 1024**2
    workspace_bytes: int = 128 * 1024**2
    tmp_bytes: int = 64 * 1024**2
    shm_bytes: int = 64 * 1024**2
    request_output_limit_bytes: int = 16 * 1024**2
    subject_runs_per_minute: int = 0
    subject_tries_per_minute: int = 10


@dataclass
class Client:
    """Who sent a request: gathers every reply, and there must be one."""

    ticket: str
    replies: queue.SimpleQueue[Reply] = field(default_factory=queue.SimpleQueue)

    def reply(self) -> Reply:
        """The one reply; fails the test where none comes in time."""
        return self.replies.get(timeout=LIMIT_S)

    def answer(self) -> Answer:
        reply = self.reply()
        assert isinstance(reply, Answer), reply
        return reply

    def refusal(self) -> Refusal:
        reply = self.reply()
        assert isinstance(reply, Refusal), reply
        return reply


class Service:
    """The actors with a fake sandbox and a virtual clock."""

    def __init__(self, capacity: Capacity) -> None:
        self.clock = VirtualClock()
        self.sandbox = FakeSandbox(self.clock)
        self.fatal: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        self.clients: list[Client] = []
        self._numbers = itertools.count()
        self.system = actor_system.start(
            capacity, self.sandbox, lambda name, error: self.fatal.put((name, error)), self.clock
        )

    def submit(
        self,
        job: Job | None = None,
        *,
        priority: str = "interactive",
        budget_ms: int = 5_000,
        wait: bool = True,
        request_id: str = "request",
        evaluation_id: str | None = None,
        attempt_id: str | None = None,
        subject: str | None = None,
        purpose: str = "run",
        key_id: str = "",
        ticket: str | None = None,
        reply: Callable[[Reply], None] | None = None,
    ) -> Client:
        """Send a request; by default one task that exits with 0."""
        client = Client(ticket or f"ticket-{next(self._numbers)}")
        self.clients.append(client)
        self.system.submit(
            Submit(
                ticket=client.ticket,
                request_id=request_id,
                job=replace(job or make_job(make_task("true")), request_id=request_id),
                priority=priority,
                budget_ms=budget_ms,
                wait=wait,
                evaluation_id=evaluation_id,
                attempt_id=attempt_id,
                subject=subject,
                purpose=purpose,
                key_id=key_id,
                reply=reply or client.replies.put,
            )
        )
        return client

    def settle(self) -> None:
        """Return when every message that was under way has been read.

        A ping is read after all that was in the inbox before it, and no message causes a
        chain of more messages than there are rounds.
        """
        for _ in range(8):
            assert all(self.system.ping_all(LIMIT_S).values())
            for controller in pykka.ActorRegistry.get_by_class(Controller):
                read = threading.Event()
                if tell(controller, Ping(_setter(read))):
                    _wait_unless_stopped(read, controller)

    def picture(self) -> dict[str, Any]:
        """What SlotQueue shows."""
        self.settle()
        queue_picture: dict[str, Any] = self.whole_picture()["queue"]
        return queue_picture

    def whole_picture(self) -> dict[str, Any]:
        """What all actors show together."""
        pictures: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        assert self.system.inspect(pictures.put)
        return pictures.get(timeout=LIMIT_S)

    @contextlib.contextmanager
    def held(self, actor_class: type[pykka.ThreadingActor]) -> Iterator[pykka.ActorRef[Any]]:
        """The one actor of the class reads nothing for as long as this lasts."""
        (actor,) = pykka.ActorRegistry.get_by_class(actor_class)
        go_on, reached = threading.Event(), threading.Event()

        def hold(name: str) -> None:
            reached.set()
            go_on.wait(LIMIT_S)

        assert tell(actor, Ping(hold))
        assert reached.wait(LIMIT_S)
        try:
            yield actor
        finally:
            go_on.set()

    def free(self) -> tuple[int, int]:
        """Free slots and free memory."""
        picture = self.picture()
        slots, memory = picture["slots"], picture["memory_bytes"]
        assert isinstance(slots, dict)
        assert isinstance(memory, dict)
        return slots["free"], memory["free"]

    def waiting(self) -> list[str]:
        """The ids of those that wait, in the order of service."""
        rows = self.picture()["waiting"]
        assert isinstance(rows, list)
        return [row["id"] for row in rows]


def _setter(event: threading.Event) -> Callable[[str], None]:
    return lambda _: event.set()


def _wait_unless_stopped(read: threading.Event, actor: pykka.ActorRef[Controller]) -> None:
    """A Controller that stops itself leaves what is behind in its inbox unread."""
    end_s = time.monotonic() + LIMIT_S
    while not read.wait(0.001) and actor.is_alive():
        assert time.monotonic() < end_s, "a controller does not answer"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After every test no actor is registered, and none of their threads runs."""
    before = set(threading.enumerate())
    yield
    left = pykka.ActorRegistry.get_all()
    pykka.ActorRegistry.stop_all(timeout=LIMIT_S)
    assert not left, f"actors are left: {left}"
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"a thread is left: {thread.name}"


@pytest.fixture
def start_service(_nothing_is_left: None) -> Iterator[Callable[..., Service]]:
    """Starts services with the given settings, and stops them when the test is over.

    Every client must have had exactly one reply by then.
    """
    services: list[Service] = []

    def start(**settings: int) -> Service:
        services.append(Service(Capacity(**settings)))
        return services[-1]

    yield start
    for service in services:
        service.system.stop(LIMIT_S)
        for client in service.clients:
            assert client.replies.empty(), f"{client.ticket} got a reply too many"


@pytest.fixture
def service(start_service: Callable[..., Service]) -> Service:
    """Two slots, one of them for grading at most."""
    return start_service()


class _Poison:
    """A message that raises when a handler so much as looks at its type."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("poison")


Kill = Callable[[type[pykka.ThreadingActor]], None]


@pytest.fixture
def kill() -> Kill:
    """Makes the one actor of a class die of an exception, and waits until it is dead."""

    def kill_it(actor_class: type[pykka.ThreadingActor]) -> None:
        (actor,) = pykka.ActorRegistry.get_by_class(actor_class)
        actor.tell(_Poison())
        for thread in threading.enumerate():
            if thread.name.startswith(f"{actor_class.__name__}-"):
                thread.join(LIMIT_S)
                assert not thread.is_alive()

    return kill_it
