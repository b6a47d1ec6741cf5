"""What is handed out, to whom, and when it is back at the latest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gaoler.actors.policy.slots import NS_PER_MS, QueueRules, Room, SlotRequest


@dataclass(slots=True)
class Held:
    """What one request holds."""

    request: SlotRequest
    granted_ns: int
    slots: bool = True  # false once given back
    memory: bool = True

    @property
    def room(self) -> Room:
        """What it still holds."""
        whole = self.request.room
        return Room(
            whole.slots if self.slots else 0,
            whole.memory_bytes if self.memory else 0,
            whole.grading_slots if self.slots else 0,
            whole.grading_memory_bytes if self.memory else 0,
        )

    @property
    def deadline_ns(self) -> int:
        return self.granted_ns + self.request.budget_ms * NS_PER_MS


class Holdings:
    """All that there is: what is free, and who holds the rest.

    Invariant: what is free and what is held add up to what there is, and neither is negative.
    """

    def __init__(self, rules: QueueRules) -> None:
        self._all = rules.room
        self._after_deadline_ns = (rules.slack_ms + rules.teardown_ms) * NS_PER_MS
        self.free = rules.room
        self._held: dict[str, Held] = {}

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def take(self, request: SlotRequest, now_ns: int) -> None:
        """The room must be there: `free.holds(request.room)`."""
        self.free = self.free.minus(request.room)
        self._held[request.ticket] = Held(request, now_ns)

    def give_back(self, ticket: str, *, slots: bool, memory: bool) -> bool:
        """What the ticket holds, or a part of it.  False where it holds nothing of it."""
        held = self._held.get(ticket)
        if held is None:
            return False
        before = held.room
        held.slots = held.slots and not slots
        held.memory = held.memory and not memory
        returned = before.minus(held.room)
        self.free = self.free.plus(returned)
        if not (held.slots or held.memory):
            del self._held[ticket]
        return returned != Room(0, 0)

    def end_ns(self, held: Held) -> int:
        """When it has given its slots back, whatever happens."""
        return held.deadline_ns + self._after_deadline_ns

    def free_at_ns(self, need: Room, now_ns: int) -> int | None:
        """When `need` is free at the latest, if nothing else is handed out until then.

        None where even all running requests together would not leave enough, because memory
        is in quarantine, which ends nobody knows when.
        """
        free, at_ns = self.free, now_ns
        running = sorted((held for held in self if held.slots), key=self.end_ns)
        for held in running:
            if free.holds(need):
                break
            free = free.plus(held.room)
            at_ns = max(at_ns, self.end_ns(held))
        return at_ns if free.holds(need) else None

    def free_by_deadline_ns(self, need: Room, now_ns: int) -> int:
        """As `free_at_ns`, but when it may be expected; the last deadline where it never is."""
        at_ns = self.free_at_ns(need, now_ns)
        if at_ns is None:
            at_ns = max((self.end_ns(held) for held in self if held.slots), default=now_ns)
        return max(now_ns, at_ns - self._after_deadline_ns)

    def last_budget_ms(self, until_ns: int | None, now_ns: int) -> int | None:
        """The longest budget that, granted now, is over by `until_ns` whatever happens.

        None: any.  It may be negative, and then none is.
        """
        if until_ns is None:
            return None
        return (until_ns - self._after_deadline_ns - now_ns) // NS_PER_MS

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        held = Room(0, 0)
        for each in self:
            assert each.slots or each.memory, "somebody holds nothing"
            held = held.plus(each.room)
        assert self.free.plus(held) == self._all, "something was lost"
        assert self.free.holds(Room(0, 0)), "more was handed out than there is"
