"""The actor around `Caps`: it receives, lets the caps decide, and tells."""

from __future__ import annotations

from gaoler.actors.life import OnFatal, Singleton, hand_over
from gaoler.actors.messages import Inspect, Message, NotReserved, Release, Reserve, Reserved
from gaoler.actors.policy.caps import ATTEMPT_IN_FLIGHT, Caps


class EvaluationCap(Singleton):
    """Owns the counts of each evaluation, and which attempts are under way."""

    def __init__(self, caps: Caps, on_fatal: OnFatal) -> None:
        super().__init__(on_fatal)
        self._caps = caps

    def receive(self, message: object) -> None:
        match message:
            case Reserve():
                hand_over(message.reply, self._reserve(message))
            case Release(ticket=ticket):
                self._caps.release(ticket)
            case Inspect(reply=reply, rows=rows):
                hand_over(reply, self._caps.snapshot(rows))
            case _:
                self.ignore(message)

    def _reserve(self, message: Reserve) -> Message:
        in_the_way = self._caps.reserve(
            message.ticket,
            message.scope,
            message.evaluation_id,
            message.attempt_id,
            message.interactive,
        )
        if in_the_way is None:
            return Reserved(message.ticket)
        if in_the_way == ATTEMPT_IN_FLIGHT:
            detail = "attempt_id: a request of this attempt is queued or running"
            return NotReserved(message.ticket, "attempt_in_flight", detail)
        most = self._caps.per_evaluation
        detail = f"evaluation_id: {most} interactive requests of it are queued or running, the most"
        return NotReserved(message.ticket, "runner_unavailable", detail, "busy")
