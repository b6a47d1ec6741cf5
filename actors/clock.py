"""The time, as something that is handed in: the host's monotonic clock, or a virtual one.

Alarm is the only one that waits for an instant.  It does so through a `Timer`, because an
actor's own thread sleeps in its inbox.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

NS_PER_MS = 1_000_000


class Timer(Protocol):
    """Rings once at an instant."""

    def set(self, when_ns: int | None) -> None:
        """Ring at `when_ns` and no longer at what was set before; None: not at all.

        An instant that has passed rings at once.  From any thread, never blocks.
        """

    def stop(self) -> None:
        """Never ring again.  Idempotent, from any thread, never blocks."""


class Clock(Protocol):
    """Where the actors get the time from."""

    def now_ns(self) -> int:
        """A reading of a clock that never goes back."""

    def start_timer(self, ring: Callable[[], object]) -> Timer:
        """A timer that calls `ring`, from a thread of its choice; `ring` must not block."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which all processes of the host share."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def start_timer(self, ring: Callable[[], object]) -> Timer:
        return _ThreadTimer(ring)


class _ThreadTimer:
    """A thread that sleeps until the instant comes, another one is set, or it is stopped."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._changed = threading.Condition()
        self._when_ns: int | None = None
        self._stopped = False
        threading.Thread(target=self._run, name="alarm-timer", daemon=True).start()

    def set(self, when_ns: int | None) -> None:
        with self._changed:
            self._when_ns = when_ns
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait_until_due():
            self._ring()

    def _wait_until_due(self) -> bool:
        """True when the instant has come, False when the timer was stopped."""
        with self._changed:
            while not self._stopped:
                left_ns = None if self._when_ns is None else self._when_ns - time.monotonic_ns()
                if left_ns is not None and left_ns <= 0:
                    self._when_ns = None
                    return True
                self._changed.wait(None if left_ns is None else left_ns / 1e9)
            return False


class VirtualClock:
    """A clock that moves when it is told to; for tests and simulations."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ns = start_ns
        self._timers: list[_VirtualTimer] = []

    def now_ns(self) -> int:
        with self._lock:
            return self._now_ns

    def start_timer(self, ring: Callable[[], object]) -> Timer:
        timer = _VirtualTimer(self, ring)
        with self._lock:
            self._timers.append(timer)
        return timer

    def advance_ms(self, milliseconds: int) -> None:
        """Move on, and ring whatever has come due, in the calling thread."""
        with self._lock:
            self._now_ns += milliseconds * NS_PER_MS
            timers = list(self._timers)
        for timer in timers:
            timer.ring_if_due()


class _VirtualTimer:
    def __init__(self, clock: VirtualClock, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._ring = ring
        self._lock = threading.Lock()
        self._when_ns: int | None = None

    def set(self, when_ns: int | None) -> None:
        with self._lock:
            self._when_ns = when_ns
        self.ring_if_due()

    def stop(self) -> None:
        self.set(None)

    def ring_if_due(self) -> None:
        with self._lock:
            if self._when_ns is None or self._when_ns > self._clock.now_ns():
                return
            self._when_ns = None
        self._ring()
