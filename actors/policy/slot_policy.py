"""Who gets slots and memory, and when: docs/api.md, without a clock or a thread.

`SlotPolicy` hands out slots and memory together or not at all.  Every method takes the time
and returns what was decided (`Grant`, `Refuse`), never more than the caller has to say on.

The order:

- Interactive goes before grading; within a class first come, first served.
- A grading request that has waited `aging_ms` goes before the interactive head, unless that
  head has been passed by one already.
- A grading request that its class's ceiling holds back stands in nobody's way.
- Whoever is first and does not fit keeps everyone behind it waiting, so that a wide request
  is never starved by narrow ones.  (Backfilling, which would let some of them go where that
  cannot delay the head, would be a second look in `_grant_all`.)  So a grading request is
  served when no interactive one waits, or when it has aged.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gaoler.actors.policy.estimate import NS_PER_MS, expected_starts_ns
from gaoler.actors.policy.slots import (
    GRADING,
    INTERACTIVE,
    ClassRules,
    Decision,
    Grant,
    QueueRules,
    Refuse,
    Room,
    SlotRequest,
)
from gaoler.actors.policy.timetable import Timetable


@dataclass(slots=True)
class _Waiting:
    request: SlotRequest
    since_ns: int
    passed: bool = False  # an aged grading request went before it while it was the head


@dataclass(slots=True)
class _Held:
    request: SlotRequest
    granted_ns: int
    slots: bool = True  # false once given back
    memory: bool = True

    @property
    def room(self) -> Room:
        """What it still holds."""
        return Room(
            self.request.slots if self.slots else 0,
            self.request.memory_bytes if self.memory else 0,
        )

    @property
    def deadline_ns(self) -> int:
        return self.granted_ns + self.request.budget_ms * NS_PER_MS


_Queue = OrderedDict[str, _Waiting]


class SlotPolicy:
    """The slots, the memory, and the two queues for them.

    Invariants, which `check` evaluates: what is free and what is held add up to what there
    is; grading holds at most its ceiling of slots; no queue is over its limit; a ticket
    waits or holds, never both; who is next does not fit; nobody waits past their allowance.
    """

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self._free = Room(rules.slots, rules.memory_bytes)
        self._grading_slots_held = 0
        # in the order of arrival; the first and any other can be removed in constant time
        self._queues: dict[str, _Queue] = {INTERACTIVE: OrderedDict(), GRADING: OrderedDict()}
        self._held: dict[str, _Held] = {}
        self._expiries: Timetable[_Waiting] = Timetable()
        self._counters: Counter[str] = Counter()
        self._settled_ns = 0  # when `_settle` last ran; for `check`

    # --- what can happen ------------------------------------------------------------------

    def enqueue(self, request: SlotRequest, now_ns: int) -> list[Decision]:
        """A request comes.  ValueError for a ticket that waits or holds already."""
        if request.ticket in self._held or self._find(request.ticket) is not None:
            raise ValueError(f"ticket {request.ticket!r} is in use")
        if not self._possible(request):
            return [self._refused(Refuse(request.ticket, "impossible"))]
        decisions = self._settle(now_ns)
        self._add(request, now_ns)
        decisions += self._grant_all(now_ns)
        if (cause := self._may_not_wait(request)) is not None:
            # nothing behind it can go now: it all was settled a moment ago
            decisions.append(self._turn_away(request, cause, now_ns))
        return decisions

    def withdraw(self, ticket: str, now_ns: int) -> list[Decision]:
        """The request will not wait any longer.  Others than waiting tickets are ignored."""
        waiting = self._find(ticket)
        if waiting is None:
            return []
        self._remove(waiting.request)
        self._counters["withdrawn"] += 1
        return self._settle(now_ns)

    def release(
        self, ticket: str, now_ns: int, *, slots: bool = True, memory: bool = True
    ) -> list[Decision]:
        """Give back what the ticket holds, or a part of it.  Each part counts once."""
        held = self._held.get(ticket)
        if held is None:
            return []
        before = held.room
        if slots and held.slots:
            held.slots = False
            self._grading_slots_held -= _grading_slots(held.request)
        if memory and held.memory:
            held.memory = False
        self._free = self._free.plus(before.minus(held.room))
        if not (held.slots or held.memory):
            del self._held[ticket]
        return self._settle(now_ns)

    def tick(self, now_ns: int) -> list[Decision]:
        """Time has passed: an allowance may have run out, a request may have aged."""
        return self._settle(now_ns)

    def next_wake_ns(self, now_ns: int) -> int | None:
        """When `tick` is to be called at the latest; None: time alone changes nothing."""
        wakes = [self._expiries.next_ns()]
        grading = _head(self._queues[GRADING])
        if grading is not None and self._queues[INTERACTIVE] and not self._aged(grading, now_ns):
            wakes.append(grading.since_ns + self._rules.aging_ms * NS_PER_MS)
        return min((wake for wake in wakes if wake is not None), default=None)

    # --- what can be seen -----------------------------------------------------------------

    def snapshot(self, now_ns: int) -> dict[str, object]:
        """A picture for operators: `slots`, `memory`, `running`, `waiting`, `counters`."""
        rules = self._rules
        return {
            "slots": {"total": rules.slots, "free": self._free.slots},
            "memory_bytes": {"total": rules.memory_bytes, "free": self._free.memory_bytes},
            "grading_slots": {"total": rules.grading_slots, "held": self._grading_slots_held},
            "running": [self._running_row(held, now_ns) for held in self._held.values()],
            "waiting": self._waiting_rows(now_ns),
            "counters": dict(self._counters),
        }

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        self._check_sums()
        self._check_queues()
        self._expiries.check()
        candidate = self._candidate(self._settled_ns)
        assert candidate is None or not self._free.holds(candidate.request.room), (
            f"{candidate.request.ticket} fits and still waits"
        )

    # --- the rules ------------------------------------------------------------------------

    def _possible(self, request: SlotRequest) -> bool:
        rules = self._rules
        most_slots = rules.slots
        if request.priority == GRADING:
            most_slots = min(most_slots, rules.grading_slots)
        return Room(most_slots, rules.memory_bytes).holds(request.room)

    def _settle(self, now_ns: int) -> list[Decision]:
        """Let go who has waited too long, then serve whoever can be served."""
        self._settled_ns = now_ns
        expired = [waiting.request for _, waiting in self._expiries.pop_due(now_ns)]
        refusals: list[Decision] = [
            self._turn_away(request, "expired", now_ns) for request in expired
        ]
        return refusals + self._grant_all(now_ns)

    def _grant_all(self, now_ns: int) -> list[Decision]:
        decisions: list[Decision] = []
        while (candidate := self._candidate(now_ns)) is not None:
            if not self._free.holds(candidate.request.room):
                break
            self._take(candidate, now_ns)
            decisions.append(Grant(candidate.request.ticket))
        return decisions

    def _candidate(self, now_ns: int) -> _Waiting | None:
        """Who is to be served next, whether or not it fits."""
        interactive = _head(self._queues[INTERACTIVE])
        grading = self._grading_candidate()
        if interactive is None or grading is None:
            return interactive or grading
        if self._aged(grading, now_ns) and not interactive.passed:
            return grading
        return interactive

    def _grading_candidate(self) -> _Waiting | None:
        """The grading head, unless the ceiling of its class holds it back."""
        grading = _head(self._queues[GRADING])
        if grading is None:
            return None
        wanted_slots = self._grading_slots_held + grading.request.slots
        return grading if wanted_slots <= self._rules.grading_slots else None

    def _take(self, waiting: _Waiting, now_ns: int) -> None:
        request = waiting.request
        self._remove(request)
        interactive = _head(self._queues[INTERACTIVE])
        if request.priority == GRADING and interactive is not None:
            interactive.passed = True
        self._free = self._free.minus(request.room)
        self._grading_slots_held += _grading_slots(request)
        self._held[request.ticket] = _Held(request, now_ns)
        self._counters["granted"] += 1

    def _may_not_wait(self, request: SlotRequest) -> str | None:
        """Why a request that still waits must not, None where it may or where it was served."""
        queue = self._queues[request.priority]
        if request.ticket not in queue:
            return None
        if not request.wait:
            return "no_slots"
        return "queue_full" if len(queue) > self._class_rules(request).queue_limit else None

    def _aged(self, waiting: _Waiting, now_ns: int) -> bool:
        aged_ns = waiting.since_ns + self._rules.aging_ms * NS_PER_MS
        return waiting.request.priority == GRADING and now_ns >= aged_ns

    # --- the books ------------------------------------------------------------------------

    def _class_rules(self, request: SlotRequest) -> ClassRules:
        return self._rules.grading if request.priority == GRADING else self._rules.interactive

    def _find(self, ticket: str) -> _Waiting | None:
        return self._queues[INTERACTIVE].get(ticket) or self._queues[GRADING].get(ticket)

    def _add(self, request: SlotRequest, now_ns: int) -> None:
        waiting = _Waiting(request, now_ns)
        self._queues[request.priority][request.ticket] = waiting
        expires_ns = now_ns + self._class_rules(request).allowance_ms * NS_PER_MS
        self._expiries.set(request.ticket, expires_ns, waiting)

    def _remove(self, request: SlotRequest) -> None:
        del self._queues[request.priority][request.ticket]
        self._expiries.forget(request.ticket)

    def _turn_away(self, request: SlotRequest, cause: str, now_ns: int) -> Refuse:
        """Forget a waiting request, and say how things stood for it."""
        queue = self._queues[request.priority]
        position = list(queue).index(request.ticket) + 1
        eta_ms = self._etas_ms(now_ns)[request.ticket]
        self._remove(request)
        return self._refused(Refuse(request.ticket, cause, len(queue), position, eta_ms))

    def _refused(self, refusal: Refuse) -> Refuse:
        self._counters[refusal.cause] += 1
        return refusal

    # --- estimates and pictures -----------------------------------------------------------

    def _expected_order(self, now_ns: int) -> Iterator[_Waiting]:
        """Roughly how the waiting will be served: at most one aged one, interactive, grading."""
        first = self._candidate(now_ns)
        if first is not None:
            yield first
        for queue in self._queues.values():
            yield from (waiting for waiting in queue.values() if waiting is not first)

    def _etas_ms(self, now_ns: int) -> dict[str, int]:
        """For each waiting ticket the time until it may expect its slots."""
        order = [waiting.request for waiting in self._expected_order(now_ns)]
        # memory in quarantine comes back nobody knows when, so it is not counted on
        running = [(held.deadline_ns, held.room) for held in self._held.values() if held.slots]
        starts_ns = expected_starts_ns(
            now_ns, self._free, running, [(request.room, request.budget_ms) for request in order]
        )
        return {
            request.ticket: (start_ns - now_ns) // NS_PER_MS
            for request, start_ns in zip(order, starts_ns, strict=True)
        }

    def _running_row(self, held: _Held, now_ns: int) -> dict[str, object]:
        return {
            "request_id": held.request.request_id,
            "priority": held.request.priority,
            "evaluation_id": held.request.evaluation_id,
            "slots": held.room.slots,
            "memory_bytes": held.room.memory_bytes,
            "elapsed_ms": (now_ns - held.granted_ns) // NS_PER_MS,
            "budget_ms": held.request.budget_ms,
            "deadline_in_ms": (held.deadline_ns - now_ns) // NS_PER_MS,
            "quarantined": not held.slots,
        }

    def _waiting_rows(self, now_ns: int) -> list[dict[str, object]]:
        """In the order in which they are expected to be served; `position` is in the class."""
        etas_ms = self._etas_ms(now_ns)
        places = {
            ticket: place
            for queue in self._queues.values()
            for place, ticket in enumerate(queue, start=1)
        }
        return [
            {
                "request_id": waiting.request.request_id,
                "priority": waiting.request.priority,
                "evaluation_id": waiting.request.evaluation_id,
                "age_ms": (now_ns - waiting.since_ns) // NS_PER_MS,
                "aged": self._aged(waiting, now_ns),
                "slots": waiting.request.slots,
                "position": places[waiting.request.ticket],
                "eta_ms": etas_ms[waiting.request.ticket],
            }
            for waiting in self._expected_order(now_ns)
        ]

    # --- invariants -----------------------------------------------------------------------

    def _check_sums(self) -> None:
        rooms = [held.room for held in self._held.values()]
        held = Room(sum(room.slots for room in rooms), sum(room.memory_bytes for room in rooms))
        assert self._free.plus(held) == Room(self._rules.slots, self._rules.memory_bytes)
        assert self._free.holds(Room(0, 0)), "more was handed out than there is"
        grading = [held for held in self._held.values() if held.slots]
        assert self._grading_slots_held == sum(_grading_slots(held.request) for held in grading)
        assert self._grading_slots_held <= self._rules.grading_slots
        assert all(held.slots or held.memory for held in self._held.values())

    def _check_queues(self) -> None:
        for priority, queue in self._queues.items():
            waiting = list(queue.values())
            assert all(entry.request.priority == priority for entry in waiting)
            if waiting:
                assert len(waiting) <= self._class_rules(waiting[0].request).queue_limit
            arrivals_ns = [entry.since_ns for entry in waiting]
            assert arrivals_ns == sorted(arrivals_ns), "not first come, first served"
            assert not queue.keys() & self._held.keys(), "a ticket both waits and holds"
            assert all(entry.request.wait for entry in waiting)
        assert len(self._expiries) == sum(len(queue) for queue in self._queues.values())
        next_expiry_ns = self._expiries.next_ns()
        assert next_expiry_ns is None or next_expiry_ns > self._settled_ns


def _head(queue: _Queue) -> _Waiting | None:
    return next(iter(queue.values()), None)


def _grading_slots(request: SlotRequest) -> int:
    return request.slots if request.priority == GRADING else 0
