"""How an actor lives and dies here; what pykka leaves to its user.

- A told message whose handler raises ends the actor: `on_failure` runs then, `on_stop` does
  not.  So whatever an actor must give back it gives back in `release`, reached from both.
- Telling a dead actor raises.  Death is an expected thing at every stop, so `tell` says
  False instead.
- A callable that came in a message belongs to another room.  `hand_over` keeps what it
  raises from ending the actor that calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVarTuple

import pykka

from gaoler.actors.messages import Message, Ping

logger = logging.getLogger(__name__)

Values = TypeVarTuple("Values")
OnFatal = Callable[[str, BaseException | None], None]
Tell = Callable[[Message], object]


def tell(actor: pykka.ActorRef[Any], message: Message) -> bool:
    """Put `message` into the actor's inbox; False where the actor is dead."""
    try:
        actor.tell(message)
    except pykka.ActorDeadError:
        return False
    return True


def hand_over(receiver: Callable[[*Values], object], *values: *Values) -> None:
    """Call a callable of another room with `values`, whatever it does with them."""
    try:
        receiver(*values)
    except Exception:
        # An event loop that was closed, say.  The receiver is lost; the actor is not.
        logger.exception("hand-over failed", extra={"event": "hand_over_failed"})


class Shell(pykka.ThreadingActor):
    """An actor whose ways out all lead through `release`."""

    # A stop that hung must not keep a process alive that wants to exit.
    use_daemon_thread = True

    def on_receive(self, message: object) -> None:
        match message:
            case Ping(reply=reply):
                hand_over(reply, type(self).__name__)
            case _:
                self.receive(message)

    def receive(self, message: object) -> None:
        """Handle one message.  What it raises ends the actor."""
        raise NotImplementedError

    def release(self, *, failed: bool) -> None:
        """Give back all that is held: the actor ends.  Must not raise."""

    def ignore(self, message: object) -> None:
        """For the last `case`: a message that this actor does not know."""
        logger.warning(
            "unknown message",
            extra={"event": "unknown_message", "message_type": type(message).__name__},
        )

    def _start_actor_loop(self) -> None:
        """pykka registers an actor first; one that gets no thread must not stay registered."""
        try:
            super()._start_actor_loop()
        except RuntimeError:
            self.actor_stopped.set()
            pykka.ActorRegistry.unregister(self.actor_ref)
            raise

    def on_stop(self) -> None:
        self.release(failed=False)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release(failed=True)


class Singleton(Shell):
    """An actor that the worker cannot do without: where it dies, the worker must end."""

    def __init__(self, on_fatal: OnFatal) -> None:
        super().__init__()
        self._on_fatal = on_fatal

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release(failed=True)
        finally:
            self._on_fatal(type(self).__name__, exception_value)
