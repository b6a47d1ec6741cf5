"""When a waiting request may expect its slots: the honest guess behind `Retry-After`.

It is a guess because running requests mostly end before their deadline, because who comes
later may go before, and because narrow requests may overtake wide ones.  It is honest because
it counts what really stands in the way, in the order in which it will be served.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from gaoler.actors.policy.line import Waiting
from gaoler.actors.policy.slots import GRADING, NS_PER_MS, Room, SlotRequest


def aged_at_ns(grading: Waiting, aging_ms: int) -> int:
    """From when on it has aged."""
    return grading.since_ns + aging_ms * NS_PER_MS


def next_in_turn(
    interactive: Waiting | None, grading: Waiting | None, aging_ms: int, passed: bool, now_ns: int
) -> Waiting | None:
    """Which of the firsts of the two classes is next; `passed`: it is an interactive one's turn.

    A grading request that its class's ceiling holds back is not handed in.
    """
    if interactive is None or grading is None:
        return interactive or grading
    return grading if now_ns >= aged_at_ns(grading, aging_ms) and not passed else interactive


@dataclass(frozen=True, slots=True)
class Expected:
    """A waiting request and the instant at which it may expect its slots."""

    waiting: Waiting
    start_ns: int


class Forecast:
    """Plays the queue forward, as if everyone took all of their budget and nobody came.

    It is played for every refusal, so it counts in plain numbers.
    """

    def __init__(
        self,
        now_ns: int,
        free: Room,
        running: Iterable[tuple[int, Room]],
        interactive: Iterable[Waiting],
        grading: Iterable[Waiting],
        aging_ms: int,
        passed: bool,
    ) -> None:
        """`running`: (deadline_ns, what it gives back then); one that has passed counts as now.

        `passed`: it is an interactive one's turn, however old a grading one is.

        `interactive`, `grading`: those who wait, in the order of arrival.
        """
        self._now_ns = now_ns
        self._slots, self._memory = free.slots, free.memory_bytes
        self._below_ceiling = free.grading_slots
        self._memory_below_ceiling = free.grading_memory_bytes
        # (when, slots, memory, those of grading)
        self._endings = [
            (
                max(end_ns, now_ns),
                room.slots,
                room.memory_bytes,
                room.grading_slots,
                room.grading_memory_bytes,
            )
            for end_ns, room in running
        ]
        heapq.heapify(self._endings)
        self._interactive, self._grading = iter(interactive), iter(grading)
        self._aging_ms = aging_ms
        self._passed = passed

    def starts(self, count: int, until: str | None = None) -> list[Expected]:
        """The first `count`, in the order in which they start; no further than ticket `until`.

        What would not fit even after all others (memory in quarantine) gets the last instant
        that is known.
        """
        expected: list[Expected] = []
        interactive, grading = next(self._interactive, None), next(self._grading, None)
        while len(expected) < count and (interactive or grading):
            chosen = self._chosen(interactive, grading)
            if chosen is not None and self._fits(chosen.request):
                self._start(chosen.request)
            elif self._pass_time(interactive, grading):
                continue
            else:  # nobody will ever fit
                chosen = interactive or grading
                assert chosen is not None
            expected.append(Expected(chosen, self._now_ns))
            if chosen.request.ticket == until:
                break
            if chosen is interactive:
                interactive, self._passed = next(self._interactive, None), False
            else:
                grading = next(self._grading, None)
                self._passed = self._passed or interactive is not None
        return expected

    def _chosen(self, interactive: Waiting | None, grading: Waiting | None) -> Waiting | None:
        if grading is not None and self._held_back(grading.request):
            grading = None
        return next_in_turn(interactive, grading, self._aging_ms, self._passed, self._now_ns)

    def _held_back(self, request: SlotRequest) -> bool:
        return (
            request.slots > self._below_ceiling or request.memory_bytes > self._memory_below_ceiling
        )

    def _fits(self, request: SlotRequest) -> bool:
        return request.slots <= self._slots and request.memory_bytes <= self._memory

    def _start(self, request: SlotRequest) -> None:
        grading_slots = request.slots if request.priority == GRADING else 0
        grading_memory = request.memory_bytes if request.priority == GRADING else 0
        self._slots -= request.slots
        self._memory -= request.memory_bytes
        self._below_ceiling -= grading_slots
        self._memory_below_ceiling -= grading_memory
        end_ns = self._now_ns + request.budget_ms * NS_PER_MS
        ending = (end_ns, request.slots, request.memory_bytes, grading_slots, grading_memory)
        heapq.heappush(self._endings, ending)

    def _pass_time(self, interactive: Waiting | None, grading: Waiting | None) -> bool:
        """Go on to the next instant at which something changes; False where there is none."""
        if grading is not None and interactive is not None:
            aged_ns = aged_at_ns(grading, self._aging_ms)
            if aged_ns > self._now_ns and (not self._endings or aged_ns < self._endings[0][0]):
                self._now_ns = aged_ns
                return True
        if not self._endings:
            return False
        self._now_ns, slots, memory, grading_slots, grading_memory = heapq.heappop(self._endings)
        self._slots += slots
        self._memory += memory
        self._below_ceiling += grading_slots
        self._memory_below_ceiling += grading_memory
        return True


def retry_after_s(eta_ms: int) -> int:
    """An estimate as `Retry-After` says it: whole seconds, rounded up, at least 1."""
    return max(1, -(-eta_ms // 1000))
