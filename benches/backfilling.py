"""What filling the gaps before wide requests gives, and what it costs them.

The same requests meet the queue as it is, and the queue in strict order, under a virtual clock:
four slots, three requests in ten three slots wide, times named by their senders.  Printed are the
slots in use while somebody waited, the waits, and by how much a head started before its promise.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from gaoler.actors.policy.line import Waiting
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import ClassRules, Decision, Grant, QueueRules, SlotRequest

MS = 1_000_000
REQUESTS, SLOTS, WIDE = 4_000, 4, 3


class Strict(SlotPolicy):
    """Nobody goes before the head."""

    def _overtaker(self, head: Waiting | None, now_ns: int) -> Waiting | None:
        return None


@dataclass
class Seen:
    waits_ms: dict[int, list[float]] = field(default_factory=lambda: {1: [], WIDE: []})
    used: float = 0.0  # slots times time while somebody waited
    could: float = 0.0
    early_ms: list[float] = field(default_factory=list)  # of heads, before their promise
    late: int = 0


def arrivals() -> Iterator[tuple[int, SlotRequest, int]]:
    """(when, what, how long it runs), the same each time."""
    chance, now_ns = random.Random(1), 0
    for number in range(REQUESTS):
        now_ns += int(chance.expovariate(1 / 560) * MS)
        slots = WIDE if chance.random() < 0.3 else 1
        budget_ms = chance.choice([500, 1_000, 2_000, 4_000])
        run_ms = int(budget_ms * chance.uniform(0.2, 1.0))
        yield now_ns, SlotRequest(f"t{number}", "interactive", slots, 0, budget_ms), run_ms


class Run:
    def __init__(self, policy_class: type[SlotPolicy]) -> None:
        never = ClassRules(10**6, 10**9)
        rules = QueueRules(SLOTS, 1, 1, 10_000, never, never, slack_ms=2_000, teardown_ms=10_000)
        self.policy = policy_class(rules)
        self.seen = Seen()
        self.now_ns = 0
        self.came: dict[str, tuple[int, SlotRequest, int]] = {}
        self.ends: list[tuple[int, str]] = []
        self.promised: dict[str, int] = {}

    def play(self) -> Seen:
        for at_ns, request, run_ms in arrivals():
            self.pass_time(at_ns)
            self.came[request.ticket] = at_ns, request, run_ms
            self.hear(self.policy.enqueue(request, at_ns))
        self.pass_time(1 << 62)
        return self.seen

    def pass_time(self, until_ns: int) -> None:
        while self.ends and self.ends[0][0] <= until_ns:
            at_ns, ticket = heapq.heappop(self.ends)
            self.move(at_ns)
            self.hear(self.policy.release(ticket, at_ns))
        self.move(until_ns)

    def move(self, at_ns: int) -> None:
        if self.policy.lines["interactive"]:
            self.seen.used += (SLOTS - self.policy.holdings.free.slots) * (at_ns - self.now_ns)
            self.seen.could += SLOTS * (at_ns - self.now_ns)
        self.now_ns = at_ns

    def hear(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            assert isinstance(decision, Grant)
            at_ns, request, run_ms = self.came.pop(decision.ticket)
            self.seen.waits_ms[request.slots].append((self.now_ns - at_ns) / MS)
            promised_ns = self.promised.pop(decision.ticket, None)
            if promised_ns is not None:
                self.seen.early_ms.append((promised_ns - self.now_ns) / MS)
                self.seen.late += self.now_ns > promised_ns
            heapq.heappush(self.ends, (self.now_ns + run_ms * MS, decision.ticket))
        head = self.policy.lines["interactive"].head()
        promise = None if head is None else self.policy.promise_to(head.request.ticket)
        if promise is not None and promise.start_ns is not None:
            first_ns = self.promised.setdefault(promise.ticket, promise.start_ns)
            assert first_ns == promise.start_ns, "a promise was moved"


def main() -> int:
    strict, filled = Run(Strict).play(), Run(SlotPolicy).play()
    print(f"{'':<38}{'strict order':>14}{'gaps filled':>14}{'ratio':>8}")
    one, other = (seen.used / seen.could for seen in (strict, filled))
    label = "slots in use while somebody waits"
    print(f"{label:<38}{one:>14.1%}{other:>14.1%}{other / one:>8.2f}")
    for slots, name in ((1, "narrow"), (WIDE, "wide")):
        waits = [statistics.mean(seen.waits_ms[slots]) / 1_000 for seen in (strict, filled)]
        label = f"mean wait of {name} requests"
        print(f"{label:<38}{waits[0]:>12.2f} s{waits[1]:>12.2f} s{waits[1] / waits[0]:>8.2f}")
    early_s = statistics.mean(filled.early_ms) / 1_000
    print(
        f"{len(filled.early_ms)} heads were promised a start: {filled.late} began later, "
        f"on average {early_s:.1f} s before it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
