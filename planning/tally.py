"""What is counted while the simulation runs: a few numbers an event, whatever the length."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from gaoler.actors.policy.slots import GRADING, INTERACTIVE

CLASSES = (INTERACTIVE, GRADING)
SPANS = 400  # into how many equal parts of time the picture is cut
# Longer than any simulation: a run that was given up and never started.
NEVER_NS = 2**62
# The causes of a refusal that come only after a wait; every other comes at once.
AFTER_THE_ALLOWANCE = ("expired",)


class Level:
    """A count that goes up and down, and its mean in each of `SPANS` equal spans of time.

    What happens at `end_ns` or later changes the count and no mean.
    Invariant: `areas` holds count x nanoseconds from 0 to the last change.
    """

    def __init__(self, end_ns: int) -> None:
        self.count = 0
        self.most = 0  # before the end
        self.areas = [0] * SPANS
        self._span_ns = max(1, -(-end_ns // SPANS))  # rounded up, so that the last one is cut
        self._end_ns = end_ns
        self._since_ns = 0

    def change(self, now_ns: int, by: int) -> None:
        if self.count and now_ns > self._since_ns:
            self._fill(min(now_ns, self._end_ns))
        self._since_ns = now_ns
        self.count += by
        if self.count > self.most and now_ns < self._end_ns:
            self.most = self.count

    def close(self) -> None:
        """Bring the means up to the end."""
        self.change(max(self._end_ns, self._since_ns), 0)

    def area_ns(self) -> int:
        """The count's integral over the whole time."""
        return sum(self.areas)

    def means(self) -> list[float]:
        """The mean of each span, the last of which may be shorter, or none at all."""
        means = []
        for number, area in enumerate(self.areas):
            begin_ns = number * self._span_ns
            length_ns = min(begin_ns + self._span_ns, self._end_ns) - begin_ns
            if length_ns > 0:
                means.append(area / length_ns)
        return means

    @property
    def span_ns(self) -> int:
        return self._span_ns

    def _fill(self, until_ns: int) -> None:
        at_ns = self._since_ns
        while at_ns < until_ns:
            span = at_ns // self._span_ns
            next_ns = min((span + 1) * self._span_ns, until_ns)
            self.areas[span] += self.count * (next_ns - at_ns)
            at_ns = next_ns


@dataclass(slots=True)
class Account:
    """One class: what came, how it ended, how long it waited.

    Invariant: what was sent is answered, refused, or in one of the two levels.
    """

    waiting: Level
    running: Level  # slots held, until they are free again
    sent: int = 0
    granted: int = 0
    answered: int = 0
    answered_in_time: int = 0  # before the end
    refused: Counter[str] = field(default_factory=Counter)  # by cause
    # of the granted: from its arrival to its slots
    waits_ns: array[int] = field(default_factory=lambda: array("q"))
    # of what somebody wanted: from the first try to the slots, all tries counted.  Where the
    # end cut that short, what it had come to; where it was given up, NEVER_NS.
    delays_ns: array[int] = field(default_factory=lambda: array("q"))
    unserved: int = 0  # of what somebody wanted, cut short or given up
    # of those: recorded as one that would not wait, so there is no delay of it
    would_not_wait: int = 0

    @property
    def wanted(self) -> int:
        """What somebody wanted to be run; several tries may belong to one."""
        return len(self.delays_ns) + self.would_not_wait

    @property
    def refused_in_all(self) -> int:
        return self.refused.total()

    @property
    def refused_at_once(self) -> int:
        return self.refused_in_all - self.refused_after_the_allowance

    @property
    def refused_after_the_allowance(self) -> int:
        return sum(self.refused[cause] for cause in AFTER_THE_ALLOWANCE)


class Tally:
    """The accounts of both classes, over all nodes."""

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.accounts = {each: Account(Level(end_ns), Level(end_ns)) for each in CLASSES}

    def waits(self, priority: str, now_ns: int) -> None:
        self.accounts[priority].waiting.change(now_ns, 1)

    def granted(self, priority: str, slots: int, waited_ns: int, now_ns: int) -> None:
        account = self.accounts[priority]
        account.granted += 1
        account.waits_ns.append(waited_ns)
        account.waiting.change(now_ns, -1)
        account.running.change(now_ns, slots)

    def answered(self, priority: str, now_ns: int) -> None:
        account = self.accounts[priority]
        account.answered += 1
        account.answered_in_time += now_ns < self.end_ns

    def freed(self, priority: str, slots: int, now_ns: int) -> None:
        self.accounts[priority].running.change(now_ns, -slots)

    def refused(self, priority: str, cause: str, waited: bool, now_ns: int) -> None:
        account = self.accounts[priority]
        account.refused[cause] += 1
        if waited:
            account.waiting.change(now_ns, -1)

    def close(self) -> None:
        for account in self.accounts.values():
            account.waiting.close()
            account.running.close()

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold; for when all has ended."""
        for account in self.accounts.values():
            assert account.sent == account.answered + account.refused_in_all
            assert account.granted == account.answered == len(account.waits_ns)
            assert account.waiting.count == account.running.count == 0
