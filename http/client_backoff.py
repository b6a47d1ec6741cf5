"""When a busy service is asked again.  Pure: clock and chance are handed in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gaoler.http.client_errors import RunnerBusy


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How often a busy service is asked again, and how long is waited in between.

    The waits double, from `first_ms` up to `most_ms`, each shortened by up to half by chance so
    that clients do not come back together.  What the service wants in Retry-After comes on top.
    No attempt begins later than `total_ms` after the first; one that would is not waited for.
    """

    retries: int = 5
    first_ms: int = 500
    most_ms: int = 10_000
    total_ms: int = 120_000

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name}: {getattr(self, field.name)}, expected at least 0")

    def pause_ms(self, number: int, retry_after_s: int | None, chance: float) -> float:
        """The wait before retry `number` (the first is 0); `chance` is in [0, 1)."""
        # The exponent is bounded: a float takes no more than 2**1023.
        whole_ms = min(self.first_ms * 2.0 ** min(number, 64), self.most_ms)
        return (retry_after_s or 0) * 1_000 + whole_ms * (1 + chance) / 2


def backoff(given: int | Backoff) -> Backoff:
    """What a client's `retries` means."""
    return given if isinstance(given, Backoff) else Backoff(retries=given)


class Attempts:
    """One request's way through its retries."""

    def __init__(
        self, policy: Backoff, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._began = clock()
        self._retried = 0

    def pause_s(self, busy: RunnerBusy) -> float:
        """How long to wait before the next attempt; raises `busy` where there is to be none."""
        policy = self._policy
        if self._retried >= policy.retries:
            raise busy
        pause_ms = policy.pause_ms(self._retried, busy.retry_after_s, self._chance())
        if (self._clock() - self._began) * 1_000 + pause_ms > policy.total_ms:
            raise busy
        self._retried += 1
        return pause_ms / 1_000
