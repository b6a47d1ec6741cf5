"""What is known of one HTTP request, from the first byte to the log line."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from gaoler.http.body import Intake

request_logger = logging.getLogger("gaoler.http.request")

SCOPE_KEY = "gaoler.context"
CUT_OFF_KEY = "gaoler.cut_off"  # what ends the connection at once, from the worker

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LOGGED_PATH_CHARACTERS = 200

Scope = MutableMapping[str, Any]


@dataclass(slots=True)
class Context:
    """One request's own data; travels in the ASGI scope under SCOPE_KEY."""

    request_id: str
    intake: Intake
    method: str
    path: str
    cut_off: Callable[[], None] = lambda: None
    started_ns: int = field(default_factory=time.monotonic_ns)
    key_id: str = ""
    status: int | None = None  # None: no answer was begun
    code: str | None = None  # of the refusal, if it was one
    work: dict[str, object] = field(default_factory=dict)  # of a request that was admitted

    def log_fields(self) -> dict[str, object]:
        """For the one line that each request gets.

        No header, query or body is in it; of the body, what the queue was told.
        """
        return {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path[:_LOGGED_PATH_CHARACTERS],
            "status": self.status,
            "code": self.code,
            "duration_ms": (time.monotonic_ns() - self.started_ns) // 1_000_000,
            "key_id": self.key_id,
            **self.work,
        }


def write_log_line(fields: Mapping[str, object]) -> None:
    """The one structured line of a request; its event is "request"."""
    request_logger.info("request", extra={"fields": dict(fields)})


def context_of(scope: Mapping[str, Any]) -> Context:
    """The context that the front put into the scope."""
    context = scope[SCOPE_KEY]
    assert isinstance(context, Context)
    return context


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's own X-Request-Id if it sent a sane one, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _SANE_ID.fullmatch(given):
                return given
    return uuid4().hex
