"""Who gets slots and memory, and when: docs/api.md, without a clock or a thread.

`SlotPolicy` hands out slots and memory together or not at all.  Every method takes the time
and returns what was decided (`Grant`, `Refuse`), never more than the caller has to say on.

The order:

1. Interactive goes before grading; within a class first come, first served.
2. A grading request that has waited `aging_ms` goes before the interactive head, unless that
   head has been passed by one already.
3. A grading request that its class's ceiling holds back stands in nobody's way.
4. Who is first by these rules and does not fit is *the head*.  When it becomes the head, the
   running requests' ends promise it a start.  Until then others may go before it only where
   they are over by that start whatever happens: budget, slack and teardown (*backfilling*).
   Interactive ones first, in the order of arrival.
5. Grading requests that go before the first of their class also leave it its place below the
   ceiling: they take none of the slots that it needs there, or have given them back by the
   time at which the running grading requests' ends would let it go.

A promise holds for as long as the request is the head.  Rules 1 and 2 may put another one
before it; it is the head anew after that, with a new promise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gaoler.actors.policy.estimate import Expected, Forecast, aged, grading_goes_first
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
FORESEEN = 32


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
        self._promise: Promise | None = None  # to the head
        self._below_ceiling: Promise | None = None  # to a first of grading that it holds back
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
            decisions.append(self._turn_away(request, cause, now_ns))
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
            wakes.append(grading.since_ns + self.rules.aging_ms * NS_PER_MS)
        return min((wake for wake in wakes if wake is not None), default=None)

    # --- what can be seen -----------------------------------------------------------------

    def aged(self, waiting: Waiting, now_ns: int) -> bool:
        grading = waiting.request.priority == GRADING
        return grading and aged(waiting, self.rules.aging_ms, now_ns)

    def expires_ns(self, waiting: Waiting) -> int:
        """When its allowance is spent."""
        return waiting.since_ns + self.rules.of(waiting.request.priority).allowance_ms * NS_PER_MS

    def promise_to(self, ticket: str) -> Promise | None:
        """What was promised to the request as the head, None where it is not the head."""
        promise = self._promise
        return promise if promise is not None and promise.ticket == ticket else None

    def expected(self, now_ns: int, count: int) -> list[Expected]:
        """The first `count` that may expect to start, in the order in which they may."""
        # memory in quarantine comes back nobody knows when, so it is not counted on
        running = [(held.deadline_ns, held.room) for held in self.holdings if held.slots]
        return Forecast(
            now_ns,
            self.holdings.free,
            running,
            self.lines[INTERACTIVE],
            self.lines[GRADING],
            self.rules.aging_ms,
        ).starts(count)

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
        refusals: list[Decision] = [
            self._turn_away(request, "expired", now_ns) for request in expired
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
            self._promise = None  # whoever was the head, somebody else is first
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
        if interactive is None or grading is None:
            return interactive or grading
        if grading_goes_first(grading, interactive, self.rules.aging_ms, now_ns):
            return grading
        return interactive

    def _held_back(self, grading: Waiting) -> bool:
        """Whether the ceiling of its class keeps it from going, whatever else is free."""
        return grading.request.slots > self.holdings.free.grading_slots

    def _fits(self, waiting: Waiting) -> bool:
        return self.holdings.free.holds(waiting.request.room)

    def _note_passing(self, first: Waiting) -> None:
        interactive = self.lines[INTERACTIVE].head()
        if first.request.priority == GRADING and interactive is not None:
            interactive.passed = True

    # --- backfilling ----------------------------------------------------------------------

    def _note_promises(self, head: Waiting | None, now_ns: int) -> None:
        """Rule 4's promise to the head, and rule 5's to a first of grading that is held back."""
        need = None if head is None else head.request.room
        self._promise = self._kept(self._promise, head, need, now_ns)
        grading = self.lines[GRADING].head()
        if grading is not None and not self._held_back(grading):
            grading = None
        need = None if grading is None else Room(0, 0, grading.request.slots)
        self._below_ceiling = self._kept(self._below_ceiling, grading, need, now_ns)

    def _kept(
        self, promise: Promise | None, waiting: Waiting | None, need: Room | None, now_ns: int
    ) -> Promise | None:
        """The promise that was made to the same request before, else a new one."""
        if waiting is None or need is None:
            return None
        ticket = waiting.request.ticket
        if promise is not None and promise.ticket == ticket and promise.start_ns is not None:
            return promise
        return Promise(ticket, self.holdings.free_at_ns(need, now_ns))

    def _overtaker(self, head: Waiting | None, now_ns: int) -> Waiting | None:
        """Who may go before the head, or before a first of grading that is held back."""
        free = self.holdings.free
        most_ms = self._most_budget_ms(self._promise, now_ns)
        if head is not None:
            interactive = self.lines[INTERACTIVE].first_within(free, most_ms)
            if interactive is not None:
                return interactive
        return self._grading_overtaker(most_ms, now_ns)

    def _grading_overtaker(self, most_ms: int, now_ns: int) -> Waiting | None:
        line = self.lines[GRADING]
        first = line.head()
        if first is None:
            return None
        free = self.holdings.free
        spare_slots = free.grading_slots
        if self._held_back(first):
            most_ms = min(most_ms, self._most_budget_ms(self._below_ceiling, now_ns))
        elif self._fits(first) and first.request.budget_ms <= most_ms:
            return first
        else:
            spare_slots -= first.request.slots
        return line.first_within(
            Room(min(free.slots, spare_slots), free.memory_bytes, spare_slots), most_ms
        )

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

    def _turn_away(self, request: SlotRequest, cause: str, now_ns: int) -> Refuse:
        """Forget a waiting request, and say how things stood for it."""
        line = self.lines[request.priority]
        # One whose time is up has come before all others; one that may not wait came last.
        position = 1 if cause == "expired" else len(line)
        eta_ms = self._eta_ms(request, now_ns)
        self._remove(request)
        return self._refused(Refuse(request.ticket, cause, len(line), position, eta_ms))

    def _eta_ms(self, request: SlotRequest, now_ns: int) -> int:
        """How long until a request at one end of its line may expect its slots."""
        expected = self.expected(now_ns, FORESEEN)
        mine = [each for each in expected if each.waiting.request.priority == request.priority]
        for each in mine:
            if each.waiting.request.ticket == request.ticket:
                return (each.start_ns - now_ns) // NS_PER_MS
        # The rest of its line, on all slots that its class may have.
        foreseen = [each.waiting.request for each in mine] + [request]
        rest_ms = self.lines[request.priority].slot_ms
        rest_ms -= sum(each.slots * each.budget_ms for each in foreseen)
        room = self.rules.room
        slots = room.grading_slots if request.priority == GRADING else room.slots
        last_ns = (mine or expected)[-1].start_ns
        return (last_ns - now_ns) // NS_PER_MS + rest_ms // slots

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
