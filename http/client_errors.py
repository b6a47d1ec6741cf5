"""What can come of a request instead of an answer.

A request that ran out of its own time is none of these: it is answered, with `overrun`.
"""

from __future__ import annotations

import msgspec


class Queue(msgspec.Struct, frozen=True):
    """The queue of the request's class, as it was when the service refused."""

    waiting: int | None = None
    position: int | None = None  # the place that the request had or would have had
    eta_ms: int | None = None  # until its slots could have been expected


class RunnerError(Exception):
    """Of all of these.  What is not known is None.

    The text is `detail`: the service's own, else what happened, with the service's address.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        code: str | None = None,
        reason: str | None = None,
        request_id: str | None = None,
        retry_after_s: int | None = None,
        queue: Queue | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status  # of HTTP; None where there was no whole answer
        self.code = code
        self.reason = reason
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.queue = queue


class RunnerBusy(RunnerError):
    """It did not get its turn: the queue is full, a rate is spent, or the wait was outlasted.

    The same request may succeed later, `retry_after_s` at the earliest.
    """


class RunnerUnavailable(RunnerError):
    """Nothing that runs programs could be reached, or it left before its whole answer."""


class NotConnected(RunnerUnavailable):
    """There was no connection at all, so the request cannot have run."""


class RequestRefused(RunnerError):
    """The service does not do this, and will not if it is asked again: a 4xx, or a redirect."""


class RunnerFailed(RunnerError):
    """The fault is the service's: a 500, a 504."""


class AnswerGarbled(RunnerFailed):
    """It said 200, and what came with it is not what it should be."""
