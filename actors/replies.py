"""What Admission says to a client, put together from what happened."""

from __future__ import annotations

from dataclasses import dataclass

from gaoler.actors.clock import NS_PER_MS
from gaoler.actors.messages import Answer, Refusal, RunFailed, RunFinished

# What a client reads; the stage and the errno are for the log alone.
_DETAILS = {
    "sandbox_setup_failed": "the sandbox could not be set up; nothing was run",
    "internal_error": "the request failed for a reason that is not its own",
    "runner_unavailable": "there is nothing to run the request at the moment",
    "cancelled": "the request was cancelled",
    "deadline_exceeded": "the request was still running past its deadline and was killed",
    "shutting_down": "the service is shutting down",
    "draining": "the service takes no new requests",
    "rate_limited": "this subject has sent too many requests of this purpose",
    "attempt_in_flight": "attempt_id: a request of this attempt is queued or running",
}
_BUSY_EVALUATION = (
    "evaluation_id: as many interactive requests of this evaluation as are allowed are queued "
    "or running"
)

ASKED_FOR = ("cancelled", "shutting_down")  # failures that are nobody's fault


@dataclass(frozen=True, slots=True)
class Times:
    """When a request came and got its slots, and its budget."""

    submitted_ns: int
    granted_ns: int
    budget_ms: int


def refusal(code: str, reason: str | None = None, retry_after_s: int | None = None) -> Refusal:
    """A refusal by its code alone."""
    if code == "runner_unavailable":
        detail = _DETAILS[code] if reason is None else _BUSY_EVALUATION
        return Refusal(code, detail, reason, retry_after_s=1)
    return Refusal(code, _DETAILS.get(code, code), reason, retry_after_s)


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
