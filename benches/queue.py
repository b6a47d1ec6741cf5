"""What an operation of the queue costs with 10, 1 000 and 10 000 requests waiting.

Each operation is timed in a loop over a queue of that length, which it leaves as it was.
Printed are microseconds, which mean nothing elsewhere, and how many times that of the shortest
queue it is.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

from gaoler.actors.policy.picture import picture
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import ClassRules, QueueRules, SlotRequest

MS = 1_000_000
LENGTHS = (10, 1_000, 10_000)
ROUNDS, CALLS = 7, 300
MIB = 1 << 20

_numbers = itertools.count()


def request(
    slots: int = 1, budget_ms: int = 5_000, wait: bool = True, grading: bool = False
) -> SlotRequest:
    """A new request, alike to the others as those of a class are."""
    number = next(_numbers)
    priority = "grading" if grading else "interactive"
    evaluation = f"evaluation {number % 40}"
    memory = (700 + number % 5) * MIB
    return SlotRequest(
        f"t{number}", priority, slots, memory, budget_ms, wait, f"id{number}", evaluation
    )


class Bench:
    """A queue of two slots that are taken, with so many waiting, one in five for grading."""

    def __init__(self, waiting: int) -> None:
        rules = QueueRules(
            slots=2,
            memory_bytes=8_000 * MIB,
            grading_slots=1,
            aging_ms=10_000,
            interactive=ClassRules(waiting + 10, 10**9),
            grading=ClassRules(waiting + 10, 10**9),
            slack_ms=2_000,
            teardown_ms=10_000,
        )
        self.now_ns = 10**12
        self.policy = SlotPolicy(rules)
        self.held = [request(budget_ms=20_000), request(budget_ms=20_000)]
        for each in self.held:
            self.policy.enqueue(each, self.now_ns)
        for number in range(waiting):
            wide = 2 if number == 0 else 1
            each = request(wide, budget_ms=25_000, grading=number % 5 == 4)
            self.policy.enqueue(each, self.now_ns)

    def come_and_go(self) -> None:
        """A request comes, waits at the end, and its client leaves."""
        new = request(budget_ms=25_000)
        self.policy.enqueue(new, self.now_ns)
        self.policy.withdraw(new.ticket, self.now_ns)

    def refuse(self) -> None:
        """A request that would not wait, with its place and its estimate."""
        self.policy.enqueue(request(budget_ms=25_000, wait=False), self.now_ns)

    def backfill(self) -> None:
        """A slot comes free, the wide head cannot have it, and the line is looked through for
        somebody short; then one comes, goes, and the slot is taken again."""
        self.policy.release(self.held[1].ticket, self.now_ns)
        self.held[1] = request(budget_ms=20_000)
        self.policy.enqueue(self.held[1], self.now_ns)

    def tick(self) -> None:
        """The alarm rings and nothing is due."""
        self.policy.tick(self.now_ns)

    def look(self) -> None:
        """What /internal/queue shows."""
        picture(self.policy, self.now_ns)


def measure(operation: Callable[[], None]) -> float:
    """Microseconds of one call: the median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            operation()
        times.append((time.perf_counter_ns() - started) / CALLS / 1_000)
    return statistics.median(times)


def main() -> int:
    names = ("come_and_go", "refuse", "backfill", "tick", "look")
    found: dict[int, dict[str, float]] = {length: {} for length in LENGTHS}
    for length in LENGTHS:
        bench = Bench(length)
        for name in names:
            found[length][name] = measure(getattr(bench, name))
        bench.policy.check()
    print(f"microseconds (how many times that of {LENGTHS[0]} waiting)")
    print(" " * 22 + "".join(f"{f'{length} waiting':>18}" for length in LENGTHS))
    for name in names:
        least = found[LENGTHS[0]][name]
        times = [found[length][name] for length in LENGTHS]
        cells = "".join(f"{us:>9.1f} (x{us / least:5.1f})" for us in times)
        print(f"{name:<22}{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
