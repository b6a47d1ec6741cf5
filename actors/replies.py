"""What Admission says to a client, put together from what happened."""

from __future__ import annotations

from dataclasses import dataclass

from gaoler.actors.clock import NS_PER_MS
from gaoler.actors.messages import Answer, NotReserved, Refusal, RunFailed, RunFinished

# What a client reads; the stage and the errno are for the log alone.
_DETAILS = {
    "sandbox_setup_failed": "the sandbox could not be set up; nothing was run",
    "internal_error": "the request failed for a reason that is not its own",
    "runner_unavailable": "there is nothing to run the request at the moment",
    "cancelled": "the request was cancelled",
    "deadline_exceeded": "the request was still running past its deadline and was killed",
    "shutting_down": "the service is shutting down",
    "draining": "the service takes no new requests",
}

_KINDS = {"run": "runs", "try": "tries"}

ASKED_FOR = ("cancelled", "shutting_down")  # failures that are nobody's fault


@dataclass(frozen=True, slots=True)
class Times:
    """When a request came and got its slots, and its budget."""

    submitted_ns: int
    granted_ns: int
    budget_ms: int


def refusal(code: str) -> Refusal:
    """A refusal by its code alone."""
    retry_after_s = 1 if code == "runner_unavailable" else None
    return Refusal(code, _DETAILS.get(code, code), retry_after_s=retry_after_s)


def not_reserved(message: NotReserved) -> Refusal:
    """By the caps.  Nobody knows which of their requests ends first, so a busy one says 1 s."""
    retry_after_s = 1 if message.reason == "busy" else None
    return Refusal(message.code, message.detail, message.reason, retry_after_s)


def rate_limited(purpose: str, retry_after_s: int) -> Refusal:
    """By the subject's rate."""
    detail = f"subject: its {_KINDS[purpose]} of this minute are spent"
    return Refusal("rate_limited", detail, retry_after_s=retry_after_s)


def answer(times: Times, message: RunFinished) -> Answer:
    """The times of an answer: in the queue, until the first program started, from then on."""
    first_ns = message.exec_ns or message.finished_ns  # 0: no program was started
    return Answer(
        results=message.results,
        queued_ms=(times.granted_ns - times.submitted_ns) // NS_PER_MS,
        setup_ms=max(0, first_ns - times.granted_ns) // NS_PER_MS,
        run_ms=max(0, message.finished_ns - first_ns) // NS_PER_MS,
        budget_ms=times.budget_ms,
    )


def failure_fields(request_id: str, message: RunFailed) -> dict[str, str | int]:
    """For the log line of a run that failed."""
    return {
        "event": "run_failed",
        "request_id": request_id,
        "code": message.code,
        "stage": message.stage,
        "errno": message.errno,
    }
