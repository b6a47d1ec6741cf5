"""The warden's event loop: descriptors, and who is told when something happens on them."""

from __future__ import annotations

import select
from collections.abc import Callable


class Loop:
    """epoll with a handler for each descriptor.  Nothing that it calls may wait."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._new_in_batch: set[int] = set()

    def watch(self, descriptor: int, mask: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever one of the events of `mask` (or a hang-up) is there."""
        self._poller.register(descriptor, mask)
        self._handlers[descriptor] = handler
        self._new_in_batch.add(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed.  Idempotent."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for the next events and handle them."""
        batch = self._poller.poll(timeout_s)
        self._new_in_batch.clear()
        for descriptor, _ in batch:
            handler = self._handlers.get(descriptor)
            # A number may be used again while events of its former owner are still in hand.
            if handler is not None and descriptor not in self._new_in_batch:
                handler()
