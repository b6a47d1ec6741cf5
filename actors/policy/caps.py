"""How many requests of one evaluation, and of one attempt, may be in flight: without a clock."""

from __future__ import annotations

from collections import Counter


class Caps:
    """At most so many interactive requests of an evaluation, and one of an attempt.

    Invariant, which `check` evaluates: the counts are those of the tickets that are reserved.
    """

    def __init__(self, per_evaluation: int) -> None:
        self._per_evaluation = per_evaluation
        self._counts: Counter[tuple[str, str]] = Counter()  # by scope and evaluation
        self._attempts: set[tuple[str, str]] = set()  # by scope and attempt
        self._reserved: dict[str, tuple[tuple[str, str] | None, tuple[str, str] | None]] = {}

    def reserve(
        self,
        ticket: str,
        scope: str,
        evaluation_id: str | None,
        attempt_id: str | None,
        interactive: bool,
    ) -> str | None:
        """None where the ticket has its place now, else the code of the refusal."""
        counted = interactive and evaluation_id is not None
        evaluation = (scope, evaluation_id) if counted and evaluation_id is not None else None
        attempt = None if attempt_id is None else (scope, attempt_id)
        if attempt in self._attempts:
            return "attempt_in_flight"
        if evaluation is not None and self._counts[evaluation] >= self._per_evaluation:
            return "evaluation_cap"
        if evaluation is not None:
            self._counts[evaluation] += 1
        if attempt is not None:
            self._attempts.add(attempt)
        self._reserved[ticket] = (evaluation, attempt)
        return None

    def release(self, ticket: str) -> None:
        """Give the ticket's place back.  Others than reserved tickets are ignored."""
        evaluation, attempt = self._reserved.pop(ticket, (None, None))
        if evaluation is not None:
            self._counts[evaluation] -= 1
            if not self._counts[evaluation]:
                del self._counts[evaluation]
        if attempt is not None:
            self._attempts.discard(attempt)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        held = list(self._reserved.values())
        counts = Counter(evaluation for evaluation, _ in held if evaluation is not None)
        assert +self._counts == counts
        assert all(count <= self._per_evaluation for count in counts.values())
        assert self._attempts == {attempt for _, attempt in held if attempt is not None}
