"""What the queue hands out, by which rules, to whom, and what it answers: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERACTIVE: Final = "interactive"
GRADING: Final = "grading"

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Room:
    """An amount of what the queue hands out."""

    slots: int
    memory_bytes: int
    # Those of them that count against the grading class's ceiling.
    grading_slots: int = 0
    grading_memory_bytes: int = 0

    def holds(self, other: Room) -> bool:
        return (
            other.slots <= self.slots
            and other.memory_bytes <= self.memory_bytes
            and other.below_ceiling(self)
        )

    @property
    def of_grading(self) -> Room:
        """That part which counts against the grading class's ceiling, and nothing else."""
        return Room(0, 0, self.grading_slots, self.grading_memory_bytes)

    def below_ceiling(self, of: Room) -> bool:
        """Whether the ceiling of the grading class lets this through."""
        return (
            self.grading_slots <= of.grading_slots
            and self.grading_memory_bytes <= of.grading_memory_bytes
        )

    def plus(self, other: Room) -> Room:
        return Room(
            self.slots + other.slots,
            self.memory_bytes + other.memory_bytes,
            self.grading_slots + other.grading_slots,
            self.grading_memory_bytes + other.grading_memory_bytes,
        )

    def minus(self, other: Room) -> Room:
        return Room(
            self.slots - other.slots,
            self.memory_bytes - other.memory_bytes,
            self.grading_slots - other.grading_slots,
            self.grading_memory_bytes - other.grading_memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class ClassRules:
    """How one class may wait."""

    queue_limit: int  # requests waiting at a time
    allowance_ms: int  # how long one may wait


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What there is to hand out, and how."""

    slots: int  # MAX_CONCURRENCY
    memory_bytes: int  # TASKS_MEMORY_BYTES
    grading_slots: int  # GRADING_RUNNER_CONCURRENCY
    aging_ms: int
    interactive: ClassRules
    grading: ClassRules
    slack_ms: int = 0  # RUNNER_TTL_SLACK_MS: how long past its deadline a request is left alone
    teardown_ms: int = 0  # how long after that its slots are back at the latest
    grading_memory_bytes: int | None = None  # what grading may hold of the memory; None: all

    @property
    def room(self) -> Room:
        """All that there is."""
        grading_memory_bytes = self.memory_bytes
        if self.grading_memory_bytes is not None:
            grading_memory_bytes = min(grading_memory_bytes, self.grading_memory_bytes)
        grading_slots = min(self.slots, self.grading_slots)
        return Room(self.slots, self.memory_bytes, grading_slots, grading_memory_bytes)

    def of(self, priority: str) -> ClassRules:
        return self.grading if priority == GRADING else self.interactive


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What one request wants of the queue."""

    ticket: str
    priority: str  # "interactive" or "grading"
    slots: int
    memory_bytes: int
    budget_ms: int
    wait: bool = True  # False: now or never
    request_id: str = ""  # this and the next: for people who look at the queue
    evaluation_id: str | None = None

    @property
    def room(self) -> Room:
        if self.priority == GRADING:
            return Room(self.slots, self.memory_bytes, self.slots, self.memory_bytes)
        return Room(self.slots, self.memory_bytes)


@dataclass(frozen=True, slots=True)
class Grant:
    """The slots and the memory are the ticket's, until `release`."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket gets nothing and is forgotten.

    `cause`: "impossible" (could never fit), "no_slots" (it would not wait), "queue_full" or
    "expired".  The numbers are those of the moment: others of its class that waited, its
    place among them from 1, and when it could have expected its slots.
    """

    ticket: str
    cause: str
    waiting: int = 0
    position: int = 0
    eta_ms: int = 0


Decision = Grant | Refuse
