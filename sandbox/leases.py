"""Leased UIDs: one for each jail, never two at once, and none soon again.

Pure.  A UID that was given back goes to the end of the queue, so that anything that a
jail might have left behind under it has as long as possible to be noticed.
"""

from __future__ import annotations

from collections import deque


class UidLeases:
    """UIDs first..last.

    Invariant: every UID is free, taken or withheld, and only one of them.  Those that are
    withheld are named before the first lease.
    """

    def __init__(self, first: int, last: int) -> None:
        self._all = range(first, last + 1)
        self._next = first  # never leased yet from here on: no list of 65 536 to build
        self._returned: deque[int] = deque()
        self._taken: set[int] = set()
        self._withheld: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._all) - len(self._taken) - len(self._withheld)

    def take(self) -> int | None:
        """A UID, or None where all are taken."""
        while self._next in self._withheld:
            self._next += 1
        if self._next in self._all:
            uid = self._next
            self._next += 1
        elif self._returned:
            uid = self._returned.popleft()
        else:
            return None
        self._taken.add(uid)
        return uid

    def give_back(self, uid: int) -> None:
        """Free a lease.  Raises ValueError for one that is not taken."""
        if uid not in self._taken:
            raise ValueError(f"UID {uid} is not leased")
        self._taken.remove(uid)
        self._returned.append(uid)

    def withhold(self, uid: int) -> None:
        """Never lease a UID that something outside still has.  Others' UIDs are ignored."""
        if uid in self._all:
            self._withheld.add(uid)

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        returned = set(self._returned)
        assert len(returned) == len(self._returned)
        assert not returned & self._taken
        passed = sum(1 for uid in self._withheld if uid < self._next)
        assert len(returned) + len(self._taken) + passed == self._next - self._all.start
