"""How many requests of one evaluation, and of one attempt, may be under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Final

ATTEMPT_IN_FLIGHT: Final = "attempt_in_flight"
EVALUATION_CAP: Final = "evaluation_cap"

Key = tuple[str, str]  # the API key's id, "" where there are none; the client's own name


@dataclass(frozen=True, slots=True)
class _Reservation:
    evaluation: Key | None
    attempt: Key | None


class Caps:
    """At most `per_evaluation` interactive requests of an evaluation, and one of an attempt.

    A request is under way from `reserve`, before it is queued, to `release`, after its last
    task.  Evaluations and attempts of different API keys have nothing to do with each other.

    Invariants: each count is the number of reservations that name it; nothing is kept of
    what nobody reserves.
    """

    def __init__(self, per_evaluation: int) -> None:
        self.per_evaluation = per_evaluation
        self._reserved: dict[str, _Reservation] = {}  # by ticket
        self._evaluations: Counter[Key] = Counter()
        self._attempts: set[Key] = set()

    def reserve(
        self,
        ticket: str,
        scope: str,
        evaluation_id: str | None,
        attempt_id: str | None,
        interactive: bool,
    ) -> str | None:
        """None: reserved, until `release`.  Else what is in the way, and nothing is reserved.

        `scope` is the API key's id.  What is in the way is ATTEMPT_IN_FLIGHT or EVALUATION_CAP,
        in this order.  ValueError for a ticket that has a reservation.
        """
        if ticket in self._reserved:
            raise ValueError(f"ticket {ticket!r} is in use")
        evaluation = (scope, evaluation_id) if evaluation_id is not None and interactive else None
        attempt = (scope, attempt_id) if attempt_id is not None else None
        if attempt in self._attempts:
            return ATTEMPT_IN_FLIGHT
        if evaluation is not None and self._evaluations[evaluation] >= self.per_evaluation:
            return EVALUATION_CAP
        if evaluation is not None:
            self._evaluations[evaluation] += 1
        if attempt is not None:
            self._attempts.add(attempt)
        self._reserved[ticket] = _Reservation(evaluation, attempt)
        return None

    def release(self, ticket: str) -> None:
        """Idempotent."""
        reservation = self._reserved.pop(ticket, None)
        if reservation is None:
            return
        if reservation.attempt is not None:
            self._attempts.remove(reservation.attempt)
        if reservation.evaluation is not None:
            self._evaluations[reservation.evaluation] -= 1
            if not self._evaluations[reservation.evaluation]:
                del self._evaluations[reservation.evaluation]

    def snapshot(self, rows: int) -> dict[str, object]:
        """`per_evaluation`; the first `rows` of `evaluations` and how many there are; the
        number of `attempts`.
        """
        return {
            "per_evaluation": self.per_evaluation,
            "evaluations": [
                {"evaluation_id": name, "key_id": scope, "requests": count}
                for (scope, name), count in islice(self._evaluations.items(), rows)
            ],
            "evaluations_total": len(self._evaluations),
            "attempts": len(self._attempts),
        }

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        held = list(self._reserved.values())
        assert self._evaluations == Counter(
            each.evaluation for each in held if each.evaluation is not None
        )
        attempts = [each.attempt for each in held if each.attempt is not None]
        assert len(attempts) == len(set(attempts)), "an attempt is under way twice"
        assert self._attempts == set(attempts)
        assert all(0 < count <= self.per_evaluation for count in self._evaluations.values())
