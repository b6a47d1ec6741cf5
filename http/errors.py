"""Every refusal that a client can get: one table, one exception, one way to write it.

The answers are `application/problem+json` (RFC 9457) with the members that docs/api.md
promises: `title`, `status`, `detail`, `code`, `request_id`, and `reason` where there is one.
A `detail` is written for the client: it never holds a stack trace, a host path, or anything
of another request.
"""

from __future__ import annotations

from collections.abc import Mapping

import ujson

CODES: dict[str, tuple[int, str]] = {
    "invalid_request": (400, "The request is not valid"),
    "body_timeout": (400, "The body did not arrive in time"),
    "unauthorized": (401, "A valid API key is needed"),
    "not_found": (404, "There is no such route"),
    "file_not_found": (404, "There is no such file"),
    "method_not_allowed": (405, "The route does not take this method"),
    "attempt_in_flight": (409, "The attempt is already queued or running"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be JSON"),
    "limits_exceeded": (422, "The request asks for more than this server gives"),
    "profile_not_allowed": (422, "The sandbox profile is not allowed"),
    "rate_limited": (429, "The rate limit is reached"),
    "sandbox_setup_failed": (500, "The sandbox could not be set up"),
    "internal_error": (500, "Something went wrong in the service"),
    "capacity_exhausted": (503, "The service is busy"),
    "runner_unavailable": (503, "There is no sandbox for this request at present"),
    "cancelled": (503, "The client went away"),
    "shutting_down": (503, "The service is shutting down"),
    "draining": (503, "The service takes nothing new"),
    "not_ready": (503, "The service is not ready"),
    "deadline_exceeded": (504, "The request ran past its deadline"),
}

# For what the web framework or gunicorn refuses by itself, by status.
_CODE_OF_STATUS = {
    400: "invalid_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
    501: "invalid_request",  # a transfer coding that is not ours
}

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A refusal on its way to the client.

    `code` is one of CODES; `members` are put into the body beside the promised ones;
    `headers` go out with the answer; `status` where it is not the code's usual one.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        reason: str | None = None,
        retry_after_s: int | None = None,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.members = dict(members or {})
        self.headers = dict(headers or {})
        # A code that the table does not know is a slip of ours.
        self.status = status or CODES.get(code, CODES["internal_error"])[0]


class ClientGone(Exception):
    """The connection ended before the answer: nobody is left to be told."""


def invalid(path: str, why: str) -> Problem:
    """A 400 whose detail names the field by its JSON path ("" for the body as a whole)."""
    return Problem("invalid_request", f"{path}: {why}" if path else why)


def over_limit(path: str, why: str) -> Problem:
    """A 422 `limits_exceeded` whose detail names the field by its JSON path."""
    return Problem("limits_exceeded", f"{path}: {why}")


def code_of_status(status: int) -> str:
    """The code for a refusal of which only the HTTP status is known."""
    if status in _CODE_OF_STATUS:
        return _CODE_OF_STATUS[status]
    return "invalid_request" if 400 <= status < 500 else "internal_error"


def render(problem: Problem, request_id: str) -> bytes:
    """The body of the answer, UTF-8 JSON."""
    title = CODES.get(problem.code, CODES["internal_error"])[1]
    body: dict[str, object] = {
        "type": "about:blank",
        "title": title,
        "status": problem.status,
        "detail": problem.detail or title,
        "code": problem.code,
        "request_id": request_id,
    }
    if problem.reason is not None:
        body["reason"] = problem.reason
    return dump({**problem.members, **body})


def headers(problem: Problem) -> dict[str, str]:
    """The headers that go with the answer, `Retry-After` (seconds, at least 1) among them."""
    if problem.retry_after_s is None:
        return problem.headers
    return {**problem.headers, "Retry-After": str(max(1, problem.retry_after_s))}


def dump(value: object) -> bytes:
    """Any answer of this service as UTF-8 JSON.  Texts must hold no lone surrogate."""
    return ujson.dumps(value, ensure_ascii=False, escape_forward_slashes=False).encode()
