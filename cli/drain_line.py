"""How `gaoler serve` asks its worker to drain, and hears that it has.

One pair of sockets for the life of the service.  Whichever worker there is has the same end of
it, which the web process hands on by inheritance.

    serve                              worker
    shuts its sending side down  --->  end of file: take nothing new.  It stays, so a worker that
                                       is started later, in the place of a dead one, finds it too
    finds a byte                 <---  a byte: nothing is in flight any more

The byte stays as well: once it was true it is true for good, whatever becomes of the worker.  A
worker that dies says nothing by it, because `gaoler serve` holds the worker's end itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from gaoler.config.settings import Settings

# For teardowns, and for whatever else was not thought of.
_MARGIN_S = 30.0


def limit_s(settings: Settings) -> float:
    """By then all that was in flight has had its whole allowance and its whole time."""
    allowance_ms = max(settings.queue_allowance_interactive_ms, settings.queue_allowance_grading_ms)
    ceiling_ms = max(
        settings.runner_timeout_ms,
        settings.overall_timeout_ms,
        settings.runner_project_timeout_ms,
    )
    total_ms = allowance_ms + ceiling_ms + settings.runner_ttl_slack_ms
    return total_ms / 1000 + _MARGIN_S


class DrainLine:
    """The end of `gaoler serve`, and the other one for as long as it may be handed out.

    Invariant: `asked` never becomes false again.
    """

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: how long after the asking what is still in flight is given up."""
        self._ours, self._theirs = socket.socketpair()
        self._limit_s = limit_s
        self._asked_s: float | None = None

    @property
    def asked(self) -> bool:
        return self._asked_s is not None

    def fileno(self) -> int:
        """Readable once the worker has drained."""
        return self._ours.fileno()

    def workers_end(self) -> int:
        """The descriptor that the web process is to inherit."""
        return self._theirs.fileno()

    def ask(self) -> None:
        """Idempotent; for a signal handler as well."""
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            self._ours.shutdown(socket.SHUT_WR)

    def left_s(self) -> float | None:
        """How long it may still take; None where nobody has asked."""
        if self._asked_s is None:
            return None
        return max(0.0, self._asked_s + self._limit_s - time.monotonic())

    def is_done(self) -> bool:
        """True once a worker has said so.  Before it was asked, nobody's word counts."""
        return self.asked and _is_readable(self.fileno())

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


# --- the worker's side --------------------------------------------------------------------


def is_asked(descriptor: int) -> bool:
    """True once the service is to be drained."""
    return _is_readable(descriptor)


def say_done(descriptor: int) -> None:
    """Nothing is in flight in this worker, and nothing will be."""
    with contextlib.suppress(BrokenPipeError):  # `gaoler serve` has been killed
        os.write(descriptor, b"d")


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
