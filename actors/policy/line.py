"""Those of one class that wait, in the order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gaoler.actors.policy.slots import Room, SlotRequest

# Larger than any request's slots, bytes or milliseconds.
NOBODY = 1 << 62

_LEAST_PLACES = 16

_Wants = tuple[int, int, int]  # slots, memory_bytes, budget_ms

_NO_WANTS: _Wants = (NOBODY, NOBODY, NOBODY)


@dataclass(slots=True)
class Waiting:
    """A request that waits."""

    request: SlotRequest
    since_ns: int


class Line:
    """One class's queue.

    `add` and `remove` cost O(log n), `head` nothing.  `first_within` costs
    O(log n) where those who want little of one thing want little of the others, which is how
    requests are; however they are, it looks at each of them at most once.

    Beside the queue there is a binary tree over its places, as an array.  Each node knows the
    least slots, memory and budget that anyone below it wants, so a part of the queue where
    nobody can fit is passed over as a whole.  A place is used once; when they run out, the
    living move together, into as many places again.

    Invariants: `slot_ms` is the sum of slots times budget of all in line; each waiting one has
    a place, and places are in the order of arrival.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._place_of: dict[str, int] = {}
        self._rebuild()
        self.slot_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    def get(self, ticket: str) -> Waiting | None:
        return self._waiting.get(ticket)

    def head(self) -> Waiting | None:
        return next(iter(self._waiting.values()), None)

    def add(self, waiting: Waiting) -> None:
        """To the end of the line."""
        request = waiting.request
        self._waiting[request.ticket] = waiting
        self.slot_ms += request.slots * request.budget_ms
        if self._used == self._places:
            self._rebuild()
            return
        self._place(waiting)
        self._set(self._used - 1, _wants(request))

    def remove(self, ticket: str) -> None:
        """Out of the line; KeyError for a ticket that is not in it."""
        request = self._waiting.pop(ticket).request
        self.slot_ms -= request.slots * request.budget_ms
        place = self._place_of.pop(ticket)
        self._at[place] = None
        self._set(place, _NO_WANTS)

    def first_within(self, room: Room, most_budget_ms: int) -> Waiting | None:
        """The first that fits into the room's slots and memory and whose budget is no longer."""
        limits = (room.slots, room.memory_bytes, most_budget_ms)
        stack = [1]
        while stack:
            node = stack.pop()
            if not _within(self._least[node], limits):
                continue
            if node >= self._places:
                return self._at[node - self._places]
            stack += (2 * node + 1, 2 * node)  # the left one, who came earlier, is next
        return None

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        requests = [waiting.request for waiting in self]
        assert self.slot_ms == sum(request.slots * request.budget_ms for request in requests)
        assert self._place_of.keys() == self._waiting.keys()
        places = [self._place_of[request.ticket] for request in requests]
        assert places == sorted(places), "places are not in the order of arrival"
        for place, waiting in zip(places, self, strict=True):
            assert self._at[place] is waiting
            assert self._least[self._places + place] == _wants(waiting.request)
        for node in range(1, self._places):
            assert self._least[node] == _least(self._least[2 * node], self._least[2 * node + 1])

    # --- the tree -------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """A tree for those in line, with room for as many again."""
        places = _LEAST_PLACES
        while places < 2 * len(self._waiting):
            places *= 2
        self._places = places  # a power of two: node i has the children 2i and 2i + 1
        self._used = 0
        self._at: list[Waiting | None] = [None] * places
        self._least: list[_Wants] = [_NO_WANTS] * (2 * places)
        for waiting in self:
            self._least[places + self._used] = _wants(waiting.request)
            self._place(waiting)
        for node in range(places - 1, 0, -1):
            self._least[node] = _least(self._least[2 * node], self._least[2 * node + 1])

    def _place(self, waiting: Waiting) -> None:
        self._at[self._used] = waiting
        self._place_of[waiting.request.ticket] = self._used
        self._used += 1

    def _set(self, place: int, wants: _Wants) -> None:
        least = self._least
        node = self._places + place
        least[node] = wants
        while node > 1:
            node //= 2
            now = _least(least[2 * node], least[2 * node + 1])
            if now == least[node]:
                return  # nothing above it changes either
            least[node] = now


def _wants(request: SlotRequest) -> _Wants:
    return request.slots, request.memory_bytes, request.budget_ms


def _within(wants: _Wants, limits: _Wants) -> bool:
    return wants[0] <= limits[0] and wants[1] <= limits[1] and wants[2] <= limits[2]


def _least(one: _Wants, other: _Wants) -> _Wants:
    if one == other:
        return one
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])
