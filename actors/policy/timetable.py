"""What is to happen when: a heap whose entries have names and can be taken back."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Forgotten entries stay in the heap until they come up or outnumber the living by this much.
SLACK_ENTRIES = 64


class Timetable(Generic[Item]):
    """Named items, each with the instant at which it is due.

    `set` and `forget` cost O(log n) amortised: a forgotten or replaced entry stays in the
    heap and is skipped when it comes up, and the heap is rebuilt once it is mostly such.

    Invariants: every live entry is in the heap with its present instant; the heap is never
    longer than twice the live entries plus `SLACK_ENTRIES`.
    """

    def __init__(self) -> None:
        self._live: dict[str, tuple[int, int, Item]] = {}  # name: (when_ns, sequence, item)
        self._heap: list[tuple[int, int, str]] = []  # (when_ns, sequence, name)
        self._sequence = 0  # makes entries unique, and keeps the order of equal instants

    def __len__(self) -> int:
        return len(self._live)

    def set(self, name: str, when_ns: int, item: Item) -> None:
        """Put `item` down for `when_ns`; what had that name is replaced."""
        self._sequence += 1
        self._live[name] = (when_ns, self._sequence, item)
        heapq.heappush(self._heap, (when_ns, self._sequence, name))
        self._compact()

    def forget(self, name: str) -> None:
        """Take the entry of that name back, if there is one."""
        if self._live.pop(name, None) is not None:
            self._compact()

    def next_ns(self) -> int | None:
        """When the earliest entry is due, None where there is none."""
        while self._heap:
            when_ns, sequence, name = self._heap[0]
            if self._is_live(name, sequence):
                return when_ns
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> list[tuple[str, Item]]:
        """Remove and return what is due at `now_ns`, in the order of its instants."""
        due: list[tuple[str, Item]] = []
        while (when_ns := self.next_ns()) is not None and when_ns <= now_ns:
            _, _, name = heapq.heappop(self._heap)
            due.append((name, self._live.pop(name)[2]))
        return due

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        in_heap = set(self._heap)
        for name, (when_ns, sequence, _) in self._live.items():
            assert (when_ns, sequence, name) in in_heap, f"{name} would never come up"
        assert len(self._heap) <= 2 * len(self._live) + SLACK_ENTRIES

    def _is_live(self, name: str, sequence: int) -> bool:
        entry = self._live.get(name)
        return entry is not None and entry[1] == sequence

    def _compact(self) -> None:
        if len(self._heap) <= 2 * len(self._live) + SLACK_ENTRIES:
            return
        self._heap = [(when, number, name) for name, (when, number, _) in self._live.items()]
        heapq.heapify(self._heap)
