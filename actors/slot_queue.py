"""The actor around `SlotPolicy`: it receives, lets the policy decide, and tells."""

from __future__ import annotations

from typing import Any

import pykka

from gaoler.actors.clock import Clock
from gaoler.actors.life import OnFatal, Singleton, Tell, hand_over, tell
from gaoler.actors.messages import (
    At,
    Enqueue,
    Forget,
    Granted,
    Inspect,
    NotGranted,
    QueueView,
    SlotsFreed,
    Tick,
    Withdraw,
)
from gaoler.actors.policy.estimate import retry_after_s
from gaoler.actors.policy.picture import picture
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import Decision, Grant, Refuse, SlotRequest

ALARM_NAME = "slot queue"

_DETAILS = {
    "no_slots": "no slots are free, and the request would not wait",
    "queue_full": "the queue of its class is full",
    "expired": "no slots became free within the queue allowance",
}


class SlotQueue(Singleton):
    """Owns the slots, the memory and who waits for them."""

    def __init__(
        self, policy: SlotPolicy, clock: Clock, alarm: pykka.ActorRef[Any], on_fatal: OnFatal
    ) -> None:
        super().__init__(on_fatal)
        self._policy = policy
        self._clock = clock
        self._alarm = alarm
        self._replies: dict[str, Tell] = {}  # by ticket, of those that wait
        self._armed_ns: int | None = None  # what Alarm has of us

    def receive(self, message: object) -> None:
        now_ns = self._clock.now_ns()
        for decision in self._decide(message, now_ns):
            self._announce(decision, now_ns)
        self._arm(now_ns)

    def _decide(self, message: object, now_ns: int) -> list[Decision]:
        match message:
            case Enqueue():
                self._replies[message.ticket] = message.reply
                return self._policy.enqueue(_slot_request(message), now_ns)
            case Withdraw(ticket=ticket):
                self._replies.pop(ticket, None)
                return self._policy.withdraw(ticket, now_ns)
            case SlotsFreed(ticket=ticket, slots=slots, memory=memory):
                return self._policy.release(ticket, now_ns, slots=slots, memory=memory)
            case Tick():
                self._armed_ns = None  # that was it: Alarm has nothing of us any more
                return self._policy.tick(now_ns)
            case Inspect(reply=reply, rows=rows):
                hand_over(reply, picture(self._policy, now_ns, rows))
            case _:
                self.ignore(message)
        return []

    def _announce(self, decision: Decision, now_ns: int) -> None:
        reply = self._replies.pop(decision.ticket)
        match decision:
            case Grant(ticket=ticket):
                hand_over(reply, Granted(ticket, now_ns))
            case Refuse():
                hand_over(reply, _not_granted(decision))

    def _arm(self, now_ns: int) -> None:
        """Keep Alarm's entry where the policy needs it."""
        wake_ns = self._policy.next_wake_ns(now_ns)
        if wake_ns == self._armed_ns:
            return
        self._armed_ns = wake_ns
        if wake_ns is None:
            tell(self._alarm, Forget(ALARM_NAME))
            return
        reference = self.actor_ref
        tell(self._alarm, At(ALARM_NAME, wake_ns, lambda tick: tell(reference, tick), Tick()))


def _slot_request(message: Enqueue) -> SlotRequest:
    return SlotRequest(
        ticket=message.ticket,
        priority=message.priority,
        slots=message.slots,
        memory_bytes=message.memory_bytes,
        budget_ms=message.budget_ms,
        wait=message.wait,
        request_id=message.request_id,
        evaluation_id=message.evaluation_id,
    )


def _not_granted(refusal: Refuse) -> NotGranted:
    if refusal.cause == "impossible":
        detail = "the request needs more slots or memory than this server ever has for its class"
        return NotGranted(refusal.ticket, "limits_exceeded", detail)
    return NotGranted(
        refusal.ticket,
        "capacity_exhausted",
        _DETAILS[refusal.cause],
        retry_after_s(refusal.eta_ms),
        QueueView(refusal.waiting, refusal.position, refusal.eta_ms),
    )
