"""What Admission knows of a request in flight."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pykka

from gaoler.actors.messages import Submit


class State(enum.Enum):
    """Where a request is; see the head of `actors.admission`."""

    RESERVING = "reserving"
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"
    QUARANTINED = "quarantined"


@dataclasses.dataclass(slots=True)
class Entry:
    """One request: what it asks for, and what it holds."""

    submit: Submit
    submitted_ns: int
    state: State = State.RESERVING
    granted_ns: int = 0
    controller: pykka.ActorRef[Any] | None = None
    replied: bool = False

    @property
    def capped(self) -> bool:
        """Whether it has something to reserve."""
        return (self.submit.evaluation_id, self.submit.attempt_id) != (None, None)
