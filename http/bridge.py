"""Where the event loop and the actors meet: the only module that knows both.

An actor answers by calling a `reply` from its own thread; the reply is handed to the loop
with `call_soon_threadsafe` and wakes a future.  A pykka future is never awaited: its
`__await__` blocks the whole loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from gaoler.actors.messages import Refusal, Reply, Submit
from gaoler.config.settings import Settings
from gaoler.http.admit import Admitted
from gaoler.http.body import Intake
from gaoler.http.errors import ClientGone

_T = TypeVar("_T")

PATIENCE_S = 1.0  # for an actor that is asked how it does

# Past allowance, budget and slack the actors have replied, whatever happened.  If they have
# not after this much more, an actor died with the request in its inbox.
LOST_AFTER_MS = 15_000


class Actors(Protocol):
    """What HTTP needs of the actors; `gaoler.actors.system.System` has it."""

    def submit(self, submit: Submit) -> None:
        """Admit a request.  Never blocks; `submit.reply` is called once, from any thread."""

    def cancel(self, ticket: str, code: str = "cancelled") -> None:
        """End a request wherever it is.  Never blocks; unknown tickets are ignored."""

    def inspect(self, reply: Callable[[dict[str, object]], None], rows: int) -> bool:
        """Ask for one picture of all actors, with at most `rows` of those who wait; False
        where nobody is there to draw it."""

    def ping_all(self, timeout_s: float = PATIENCE_S) -> dict[str, bool]:
        """Which actors answer within the limit, by name.  Blocks."""


class Bridge:
    """The way from HTTP to the actors and back."""

    def __init__(self, actors: Actors, settings: Settings) -> None:
        self._actors = actors
        self._settings = settings

    async def run(self, admitted: Admitted, intake: Intake) -> Reply:
        """Submit a request and wait for its reply.

        Raises ClientGone when the client leaves first; the request is cancelled then, as it
        is when this coroutine is.
        """
        waiting = _Waiting[Reply]()
        ticket = uuid4().hex
        client = asyncio.ensure_future(intake.gone())
        try:
            self._actors.submit(admitted.submit(ticket, waiting.reply))
            either: set[asyncio.Future[Any]] = {waiting.future, client}
            await asyncio.wait(
                either,
                timeout=self._limit_ms(admitted) / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if waiting.future.done():
                return waiting.future.result()
            if client.done():
                raise ClientGone
            return Refusal("internal_error", "the request was lost")
        finally:
            client.cancel()
            if not waiting.future.done():
                self._actors.cancel(ticket)

    async def picture(self, rows: int) -> dict[str, Any] | None:
        """The actors' picture of themselves, None where they do not answer."""
        return await ask(lambda reply: self._actors.inspect(reply, rows))

    async def alive(self) -> dict[str, bool]:
        """Which actors answer, by name.  Asked in a thread, because the asking blocks."""
        return await asyncio.to_thread(self._actors.ping_all, PATIENCE_S)

    def _limit_ms(self, admitted: Admitted) -> int:
        settings = self._settings
        allowance_ms = (
            settings.queue_allowance_interactive_ms
            if admitted.priority == "interactive"
            else settings.queue_allowance_grading_ms
        )
        return allowance_ms + admitted.budget_ms + settings.runner_ttl_slack_ms + LOST_AFTER_MS


async def ask(question: Callable[[Callable[[_T], None]], bool]) -> _T | None:
    """What `question` hands to the callable that it is given; None where nothing comes.

    `question` must not block; it says False where nobody is there to answer.
    """
    waiting = _Waiting[_T]()
    if not question(waiting.reply):
        return None
    try:
        return await asyncio.wait_for(waiting.future, PATIENCE_S)
    except TimeoutError:
        return None


class _Waiting(Generic[_T]):
    """A value that another thread will hand over once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_T] = self._loop.create_future()

    def reply(self, value: _T) -> None:
        """Hand the value over, from any thread; what comes after the first is dropped."""
        try:
            self._loop.call_soon_threadsafe(self._set, value)
        except RuntimeError:
            pass  # the loop is closed: the worker ends, and nobody waits any more

    def _set(self, value: _T) -> None:
        if not self.future.done():
            self.future.set_result(value)
