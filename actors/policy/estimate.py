"""When a waiting request may expect its slots: the honest guess behind `Retry-After`.

It is a guess because running requests mostly end before their deadline, and because who
comes later may go before.  It is honest because it counts what really stands in the way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from gaoler.actors.policy.slots import Room

NS_PER_MS = 1_000_000


def expected_starts_ns(
    now_ns: int,
    free: Room,
    running: Iterable[tuple[int, Room]],
    waiting: Iterable[tuple[Room, int]],
) -> list[int]:
    """When each of `waiting` would start if everyone took all of their budget.

    `running`: (deadline_ns, what it gives back then).  `waiting`: (what it needs, its budget
    in milliseconds), in the order in which they are to be served.  A deadline that has
    passed counts as now.  What would not fit even after all of them (memory in quarantine)
    gets the last instant that is known.
    """
    endings = [(max(end_ns, now_ns), number, room) for number, (end_ns, room) in enumerate(running)]
    heapq.heapify(endings)
    at_ns, starts = now_ns, []
    number = len(endings)  # breaks ties, so that rooms are never compared
    for need, budget_ms in waiting:
        while endings and not free.holds(need):
            at_ns, _, room = heapq.heappop(endings)
            free = free.plus(room)
        starts.append(at_ns)
        if free.holds(need):
            free = free.minus(need)
            heapq.heappush(endings, (at_ns + budget_ms * NS_PER_MS, number, need))
            number += 1
    return starts


def retry_after_s(eta_ms: int) -> int:
    """An estimate as `Retry-After` says it: whole seconds, rounded up, at least 1."""
    return max(1, -(-eta_ms // 1000))
