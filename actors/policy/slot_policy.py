"""Who gets slots and memory, and when: docs/api.md, without a clock or a thread.

`SlotPolicy` hands out slots and memory together or not at all.  Every method takes the time
and returns what was decided (`Grant`, `Refuse`), never more than the caller has to say on.

The order:

1. Interactive goes before grading; within a class first come, first served.
2. A grading request that has waited `aging_ms` goes before the interactive head, but only one
   between two interactive ones: after it, it is an interactive one's turn, whoever that is by
   then, so that neither aging nor a flood can shut them out.
3. A grading request that its class's ceiling holds back stands in nobody's way.
4. Who is first by these rules and does not fit is *the head*.  When it becomes the head, the
   running requests' ends promise it a start.  Until then others may go before it only where
   they are over by that start whatever happens: budget, slack and teardown (*backfilling*).
   Interactive ones first, in the order of arrival.  What a first of the other class was
   promised binds them too: that another one has come before it is no reason to move its start
   for a third one's sake, and who came may leave again.
5. Grading requests that go before the first of their class also leave it its place below the
   ceiling: they take none of the slots that it needs there, or have given them back by the
   time at which the running grading requests' ends would let it go.

A promise ends when another one is served before it by rules 1 or 2; when it is the head
again after that, it has a new one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gaoler.actors.policy.estimate import Expected, Forecast, aged_at_ns, next_in_turn
from gaoler.actors.policy.holdings import Holdings
from gaoler.actors.policy.line import NOBODY, Line, Waiting
from gaoler.actors.policy.slots import (
    GRADING,
    INTERACTIVE,
    NS_PER_MS,
    Decision,
    Grant,
    QueueRules,
    Refuse,
    Room,
    SlotRequest,
)
from gaoler.actors.policy.timetable import Timetable

# How far the estimate for a refused request plays the queue forward, in requests; for the rest
# of the line it divides their time by the slots.
FORESEEN = 64


@dataclass(frozen=True, slots=True)
class Promise:
    """What a request that could not go yet was told when it came to the front."""

    ticket: str
    start_ns: int | None  # at the latest; None: nobody knows, memory is in quarantine


class SlotPolicy:
    """The slots, the memory, and the two lines for them.

    Invariants, which `check` evaluates: what is free and what is held add up to what there
    is, and grading holds at most its ceiling; no line is over its limit; a ticket waits or
    holds, never both; nobody waits whom the rules would let go; nobody waits past their
    allowance.
    """

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.holdings = Holdings(rules)
        self.lines: dict[str, Line] = {INTERACTIVE: Line(), GRADING: Line()}
        self.counters: Counter[str] = Counter()
        self._expiries: Timetable[Waiting] = Timetable()
        # To the first of each class that was the head.
        self._promises: dict[str, Promise | None] = {INTERACTIVE: None, GRADING: None}
        self._below_ceiling: Promise | None = None  # to a first of grading that it holds back
        self._passed = False  # it is an interactive one's turn
        self._settled_ns = 0  # when `_settle` last ran; for `check`

    # --- what can happen ------------------------------------------------------------------

    def enqueue(self, request: SlotRequest, now_ns: int) -> list[Decision]:
        """A request comes.  ValueError for a ticket that waits or holds already."""
        if request.ticket in self.holdings or self._find(request.ticket) is not None:
            raise ValueError(f"ticket {request.ticket!r} is in use")
        if not self.rules.room.holds(request.room):
            return [self._refused(Refuse(request.ticket, "impossible"))]
        decisions = self._settle(now_ns)
        self._add(request, now_ns)
        decisions += self._grant_all(now_ns)
        if (cause := self._may_not_wait(request)) is not None:
            expected = self.expected(now_ns, FORESEEN, until=request.ticket)
            decisions.append(self._turn_away(request, cause, expected, now_ns))
            # it may have been the head, and have kept others from going
            decisions += self._grant_all(now_ns)
        return decisions

    def withdraw(self, ticket: str, now_ns: int) -> list[Decision]:
        """The request will not wait any longer.  Others than waiting tickets are ignored."""
        waiting = self._find(ticket)
        if waiting is None:
            return []
        self._remove(waiting.request)
        self.counters["withdrawn"] += 1
        return self._settle(now_ns)

    def release(
        self, ticket: str, now_ns: int, *, slots: bool = True, memory: bool = True
    ) -> list[Decision]:
        """Give back what the ticket holds, or a part of it.  Each part counts once."""
        if not self.holdings.give_back(ticket, slots=slots, memory=memory):
            return []
        return self._settle(now_ns)

    def tick(self, now_ns: int) -> list[Decision]:
        """Time has passed: an allowance may have run out, a request may have aged."""
        return self._settle(now_ns)

    def next_wake_ns(self, now_ns: int) -> int | None:
        """When `tick` is to be called at the latest; None: time alone changes nothing."""
        wakes = [self._expiries.next_ns()]
        grading = self.lines[GRADING].head()
        if grading is not None and self.lines[INTERACTIVE] and not self.aged(grading, now_ns):
            wakes.append(aged_at_ns(grading, self.rules.aging_ms))
        return min((wake for wake in wakes if wake is not None), default=None)

    # --- what can be seen -----------------------------------------------------------------

    def aged(self, waiting: Waiting, now_ns: int) -> bool:
        grading = waiting.request.priority == GRADING
        return grading and now_ns >= aged_at_ns(waiting, self.rules.aging_ms)

    def expires_ns(self, waiting: Waiting) -> int:
        """When its allowance is spent."""
        return waiting.since_ns + self.rules.of(waiting.request.priority).allowance_ms * NS_PER_MS

    def promise_to(self, ticket: str) -> Promise | None:
        """What was promised to the request as the head, None where it is not the head."""
        for promise in self._promises.values():
            if promise is not None and promise.ticket == ticket:
                return promise
        return None

    def expected(self, now_ns: int, count: int, until: str | None = None) -> list[Expected]:
        """The first `count` that may expect to start, in the order in which they may; no
        further than the ticket `until`.
        """
        # memory in quarantine comes back nobody knows when, so it is not counted on
        running = [(held.deadline_ns, held.room) for held in self.holdings if held.slots]
        return Forecast(
            now_ns,
            self.holdings.free,
            running,
            self.lines[INTERACTIVE],
            self.lines[GRADING],
            self.rules.aging_ms,
            self._passed,
        ).starts(count, until)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        self.holdings.check()
        for priority, line in self.lines.items():
            self._check_line(priority, line)
        self._expiries.check()
        assert len(self._expiries) == sum(map(len, self.lines.values()))
        next_expiry_ns = self._expiries.next_ns()
        assert next_expiry_ns is None or next_expiry_ns > self._settled_ns
        head = self._first(self._settled_ns)
        assert head is None or not self._fits(head), f"{head.request.ticket} fits and still waits"
        overtaker = self._overtaker(head, self._settled_ns)
        assert overtaker is None, f"{overtaker} may go and still waits"

    # --- the rules ------------------------------------------------------------------------

    def _settle(self, now_ns: int) -> list[Decision]:
        """Let go who has waited too long, then serve whoever can be served."""
        self._settled_ns = now_ns
        expired = [waiting.request for _, waiting in self._expiries.pop_due(now_ns)]
        if not expired:
            return self._grant_all(now_ns)
        # One forecast for all of them: thousands may come to their end at the same instant.
        expected = self.expected(now_ns, FORESEEN)
        refusals: list[Decision] = [
            self._turn_away(request, "expired", expected, now_ns) for request in expired
        ]
        return refusals + self._grant_all(now_ns)

    def _grant_all(self, now_ns: int) -> list[Decision]:
        decisions: list[Decision] = []
        while (chosen := self._next(now_ns)) is not None:
            self._take(chosen, now_ns)
            decisions.append(Grant(chosen.request.ticket))
        return decisions

    def _next(self, now_ns: int) -> Waiting | None:
        """Who may go now, if anybody."""
        first = self._first(now_ns)
        if first is not None and self._fits(first):
            self._promises = dict.fromkeys(self.lines)  # it is served before whoever had one
            self._note_passing(first)
            return first
        self._note_promises(first, now_ns)
        overtaker = self._overtaker(first, now_ns)
        if overtaker is not None:
            self.counters["backfilled"] += 1
        return overtaker

    def _first(self, now_ns: int) -> Waiting | None:
        """Who is to be served next by rules 1 to 3, whether or not it fits."""
        interactive = self.lines[INTERACTIVE].head()
        grading = self.lines[GRADING].head()
        if grading is not None and self._held_back(grading):
            grading = None
        return next_in_turn(interactive, grading, self.rules.aging_ms, self._passed, now_ns)

    def _held_back(self, grading: Waiting) -> bool:
        """Whether the ceiling of its class keeps it from going, whatever else is free."""
        return not grading.request.room.below_ceiling(self.holdings.free)

    def _fits(self, waiting: Waiting) -> bool:
        return self.holdings.free.holds(waiting.request.room)

    def _note_passing(self, first: Waiting) -> None:
        if first.request.priority == INTERACTIVE:
            self._passed = False
        elif self.lines[INTERACTIVE]:
            self._passed = True

    # --- backfilling ----------------------------------------------------------------------

    def _note_promises(self, head: Waiting | None, now_ns: int) -> None:
        """Rule 4's promise to the head, and rule 5's to a first of grading that is held back."""
        for priority, line in self.lines.items():
            first = line.head()
            promise = self._kept(self._promises[priority], first)
            if promise is None and head is not None and first is head:
                promise = self._promised(head, head.request.room, now_ns)
            self._promises[priority] = promise
        grading = self.lines[GRADING].head()
        if grading is None or not self._held_back(grading):
            self._below_ceiling = None
        elif (kept := self._kept(self._below_ceiling, grading)) is not None:
            self._below_ceiling = kept
        else:
            self._below_ceiling = self._promised(grading, grading.request.room.of_grading, now_ns)

    def _kept(self, promise: Promise | None, waiting: Waiting | None) -> Promise | None:
        """The promise, where it was made to this request and says an instant."""
        if promise is None or waiting is None or promise.start_ns is None:
            return None
        return promise if promise.ticket == waiting.request.ticket else None

    def _promised(self, waiting: Waiting, need: Room, now_ns: int) -> Promise:
        return Promise(waiting.request.ticket, self.holdings.free_at_ns(need, now_ns))

    def _overtaker(self, head: Waiting | None, now_ns: int) -> Waiting | None:
        """Who may go before the head, or before a first of grading that is held back."""
        most_ms = {
            priority: self._most_budget_ms(promise, now_ns)
            for priority, promise in self._promises.items()
        }
        return self._interactive_overtaker(head, most_ms) or self._grading_overtaker(
            most_ms, now_ns
        )

    def _interactive_overtaker(
        self, head: Waiting | None, most_ms: dict[str, int]
    ) -> Waiting | None:
        line = self.lines[INTERACTIVE]
        first = line.head()
        if head is None or first is None:
            return None
        # Its own promise is no reason for it to wait.
        if self._fits(first) and first.request.budget_ms <= most_ms[GRADING]:
            return first
        return line.first_within(self.holdings.free, min(most_ms.values()))

    def _grading_overtaker(self, most_ms: dict[str, int], now_ns: int) -> Waiting | None:
        line = self.lines[GRADING]
        first = line.head()
        if first is None:
            return None
        spare, limit_ms = self.holdings.free, min(most_ms.values())
        if self._held_back(first):
            limit_ms = min(limit_ms, self._most_budget_ms(self._below_ceiling, now_ns))
        elif self._fits(first) and first.request.budget_ms <= most_ms[INTERACTIVE]:
            return first
        else:  # its place below the ceiling is not for others
            spare = spare.minus(first.request.room.of_grading)
        slots = min(spare.slots, spare.grading_slots)
        memory_bytes = min(spare.memory_bytes, spare.grading_memory_bytes)
        return line.first_within(Room(slots, memory_bytes), limit_ms)

    def _most_budget_ms(self, promise: Promise | None, now_ns: int) -> int:
        """The longest budget of a request that may go before the one with the promise."""
        until_ns = None if promise is None else promise.start_ns
        last_ms = self.holdings.last_budget_ms(until_ns, now_ns)
        return NOBODY - 1 if last_ms is None else last_ms

    # --- the books ------------------------------------------------------------------------

    def _take(self, waiting: Waiting, now_ns: int) -> None:
        self._remove(waiting.request)
        self.holdings.take(waiting.request, now_ns)
        self.counters["granted"] += 1

    def _may_not_wait(self, request: SlotRequest) -> str | None:
        """Why a request that still waits must not, None where it may or where it was served."""
        line = self.lines[request.priority]
        if request.ticket not in line:
            return None
        if not request.wait:
            return "no_slots"
        return "queue_full" if len(line) > self.rules.of(request.priority).queue_limit else None

    def _find(self, ticket: str) -> Waiting | None:
        return self.lines[INTERACTIVE].get(ticket) or self.lines[GRADING].get(ticket)

    def _add(self, request: SlotRequest, now_ns: int) -> None:
        waiting = Waiting(request, now_ns)
        self.lines[request.priority].add(waiting)
        self._expiries.set(request.ticket, self.expires_ns(waiting), waiting)

    def _remove(self, request: SlotRequest) -> None:
        self.lines[request.priority].remove(request.ticket)
        self._expiries.forget(request.ticket)

    def _turn_away(
        self, request: SlotRequest, cause: str, expected: list[Expected], now_ns: int
    ) -> Refuse:
        """Forget a waiting request, and say how things stood for it."""
        line = self.lines[request.priority]
        # One whose time is up has come before all others; one that may not wait came last.
        position = 1 if cause == "expired" else len(line)
        eta_ms = self._eta_ms(request, position, expected, now_ns)
        self._remove(request)
        return self._refused(Refuse(request.ticket, cause, len(line), position, eta_ms))

    def _eta_ms(
        self, request: SlotRequest, position: int, expected: list[Expected], now_ns: int
    ) -> int:
        """How long until a request at one end of its line may expect its slots."""
        mine = [each for each in expected if each.waiting.request.priority == request.priority]
        for each in mine:
            if each.waiting.request.ticket == request.ticket:
                return (each.start_ns - now_ns) // NS_PER_MS
        # Beyond what is foreseen: not before the last of those, nor before its class's ceiling
        # lets it go.  Before the last of a line goes the rest of it, on all slots of its class.
        foreseen = [each.waiting.request for each in mine] + [request]
        rest_ms = self.lines[request.priority].slot_ms
        rest_ms -= sum(each.slots * each.budget_ms for each in foreseen)
        room = self.rules.room
        slots = room.grading_slots if request.priority == GRADING else room.slots
        last_ns = max(expected[-1].start_ns, self._below_ceiling_ns(request, now_ns))
        return (last_ns - now_ns) // NS_PER_MS + (rest_ms // slots if position > 1 else 0)

    def _below_ceiling_ns(self, request: SlotRequest, now_ns: int) -> int:
        """When the running grading requests' deadlines leave it a place below the ceiling."""
        return self.holdings.free_by_deadline_ns(request.room.of_grading, now_ns)

    def _refused(self, refusal: Refuse) -> Refuse:
        self.counters[refusal.cause] += 1
        return refusal

    def _check_line(self, priority: str, line: Line) -> None:
        line.check()
        waiting = list(line)
        assert len(waiting) <= self.rules.of(priority).queue_limit
        arrivals_ns = [each.since_ns for each in waiting]
        assert arrivals_ns == sorted(arrivals_ns), "not in the order of arrival"
        for each in waiting:
            assert each.request.priority == priority
            assert each.request.ticket not in self.holdings, "a ticket both waits and holds"
            assert each.request.wait
