"""When a waiting request may expect its slots: the honest guess behind `Retry-After`.

It is a guess because running requests mostly end before their deadline, because who comes
later may go before, and because narrow requests may overtake wide ones.  It is honest because
it counts what really stands in the way, in the order in which it will be served.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gaoler.actors.policy.line import Waiting
from gaoler.actors.policy.slots import NS_PER_MS, Room


def grading_goes_first(grading: Waiting, interactive: Waiting, aging_ms: int, now_ns: int) -> bool:
    """The rule of aging: whether this grading request goes before that interactive head."""
    return aged(grading, aging_ms, now_ns) and not interactive.passed


def aged(grading: Waiting, aging_ms: int, now_ns: int) -> bool:
    return now_ns >= grading.since_ns + aging_ms * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Expected:
    """A waiting request and the instant at which it may expect its slots."""

    waiting: Waiting
    start_ns: int


@dataclass(slots=True)
class Forecast:
    """Plays the queue forward, as if everyone took all of their budget and nobody came.

    `running`: (deadline_ns, what it gives back then); a deadline that has passed counts as now.
    `interactive`, `grading`: those who wait, in the order of arrival.
    """

    now_ns: int
    free: Room
    running: Iterable[tuple[int, Room]]
    interactive: Sequence[Waiting]
    grading: Sequence[Waiting]
    aging_ms: int
    _endings: list[tuple[int, int, Room]] = field(default_factory=list)
    _next: list[int] = field(default_factory=lambda: [0, 0])  # of each class, who is its head
    _passed: bool = False  # the interactive head has been passed in the forecast
    _number: int = 0  # breaks ties, so that rooms are never compared

    def starts(self) -> list[Expected]:
        """Everybody, in the order in which they start.

        What would not fit even after all others (memory in quarantine) gets the last instant
        that is known.
        """
        for end_ns, room in self.running:
            self._ends(max(end_ns, self.now_ns), room)
        expected: list[Expected] = []
        while (heads := self._heads()) != (None, None):
            chosen = self._chosen(*heads)
            if chosen is not None and self.free.holds(chosen.request.room):
                self._start(chosen)
                expected.append(Expected(chosen, self.now_ns))
            elif not self._pass_time(*heads):
                expected += [Expected(each, self.now_ns) for each in self._rest()]
                break
        return expected

    def _heads(self) -> tuple[Waiting | None, Waiting | None]:
        interactive, grading = self._next
        return (
            self.interactive[interactive] if interactive < len(self.interactive) else None,
            self.grading[grading] if grading < len(self.grading) else None,
        )

    def _chosen(self, interactive: Waiting | None, grading: Waiting | None) -> Waiting | None:
        if grading is not None and grading.request.slots > self.free.grading_slots:
            grading = None  # its class's ceiling holds it back
        if interactive is None or grading is None:
            return interactive or grading
        first = grading_goes_first(grading, interactive, self.aging_ms, self.now_ns)
        return grading if first and not self._passed else interactive

    def _start(self, chosen: Waiting) -> None:
        request = chosen.request
        self.free = self.free.minus(request.room)
        self._ends(self.now_ns + request.budget_ms * NS_PER_MS, request.room)
        grading = request.room.grading_slots > 0
        self._next[grading] += 1
        self._passed = grading and self._next[0] < len(self.interactive)

    def _pass_time(self, interactive: Waiting | None, grading: Waiting | None) -> bool:
        """Go on to the next instant at which something changes; False where there is none."""
        if grading is not None and interactive is not None:
            aged_ns = grading.since_ns + self.aging_ms * NS_PER_MS
            if aged_ns > self.now_ns and (not self._endings or aged_ns < self._endings[0][0]):
                self.now_ns = aged_ns
                return True
        if not self._endings:
            return False
        self.now_ns, _, room = heapq.heappop(self._endings)
        self.free = self.free.plus(room)
        return True

    def _ends(self, end_ns: int, room: Room) -> None:
        self._number += 1
        heapq.heappush(self._endings, (end_ns, self._number, room))

    def _rest(self) -> list[Waiting]:
        return [*self.interactive[self._next[0] :], *self.grading[self._next[1] :]]


def retry_after_s(eta_ms: int) -> int:
    """An estimate as `Retry-After` says it: whole seconds, rounded up, at least 1."""
    return max(1, -(-eta_ms // 1000))
