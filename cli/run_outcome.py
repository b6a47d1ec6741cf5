"""From a service's answer to what `gaoler run` says and exits with.  Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from gaoler.http.client_answers import Answer, Result
from gaoler.http.client_errors import (
    AnswerGarbled,
    NotConnected,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerUnavailable,
)

# Where the program did not run to its end (docs/api.md).
BUSY = 120
UNAVAILABLE = 121
REFUSED = 122
LIMIT = 123
OUT_OF_TIME = 124
OUR_FAULT = 125

SIGNAL_BASE = 128  # as shells have it: 128 + the signal's number

MIB = 1 << 20

EXIT_CODES = """\
exit codes: the program's own, or 128 + n where signal n ended it.  Where the build fails,
that of the compiler, as in `cc x.c && ./a.out`.  Where the program did not run to its end,
with one line on stderr:
  120  the service is busy, or a rate limit is reached
  121  the service is unavailable: not reachable, shutting down, running nothing
  122  the service refused the request
  123  a limit: memory, output, or a system call that the sandbox forbids
  124  out of time
  125  the service's own fault, or the output could not be written here
  130  Ctrl-C; the service ends the program then
  2    bad usage, a file that cannot be read"""


# Of single-task steps: a build, where there is one, and a run.
Reply = Answer | RunnerError


@dataclass(frozen=True, slots=True)
class Ending:
    """An exit code, and the line on stderr that goes with it."""

    code: int
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What of the command decides which hint helps."""

    with_key: bool
    for_grading: bool


def conclude(reply: Reply, asked: Asked) -> Ending:
    """What the whole command comes to."""
    if isinstance(reply, RequestRefused):
        return Ending(REFUSED, f"refused: {_refusal(reply, asked)}")
    if isinstance(reply, RunnerError):
        return _of_error(reply)
    if any(result.stub for result in reply.each):
        return Ending(UNAVAILABLE, "unavailable: the service is a stub, it runs nothing")
    for result in builds(reply):
        if not result.succeeded:
            return _of_build(result, reply.request_id)
    return _of_task("the program", program(reply), reply.request_id)


def builds(answer: Answer) -> Sequence[Result]:
    """All that came before the program."""
    return answer.each[:-1]


def program(answer: Answer) -> Result:
    """The program's own result."""
    return answer.each[-1]


def summary(answer: Answer) -> str | None:
    """Time and memory of what ran last, for a person; None where nothing was started."""
    started = [result for result in answer.each if result.outcome != "not_started"]
    if not started:
        return None
    stats = started[-1].stats
    cpu_ms = stats.cpu_user_ms + stats.cpu_system_ms
    said = [
        f"{stats.wall_ms / 1000:.2f} s",
        f"{cpu_ms / 1000:.2f} s of CPU",
        f"{stats.memory_peak_bytes / MIB:.1f} MiB",
    ]
    if stats.pids_limit_hits:
        said.append("the limit of processes was hit")
    if answer.timing.queued_ms:
        said.append(f"{answer.timing.queued_ms / 1000:.2f} s in the queue")
    return ", ".join(said)


# --- errors -------------------------------------------------------------------------------


def _of_error(error: RunnerError) -> Ending:
    detail = error.detail
    if isinstance(error, RunnerBusy):
        seconds = error.retry_after_s
        later = "" if seconds is None else f"; try again in {seconds} s"
        return Ending(BUSY, f"busy: {detail}{later}")
    if isinstance(error, NotConnected):
        hint = "does it run there? see --url and GAOLER_URL"
        return Ending(UNAVAILABLE, f"unavailable: {detail}; {hint}")
    if isinstance(error, RunnerUnavailable):
        return Ending(UNAVAILABLE, f"unavailable: {detail}")
    if isinstance(error, AnswerGarbled):
        what = f"the service's answer makes no sense: {detail}"
        return Ending(OUR_FAULT, f"{what}{_by_id(error.request_id)}")
    return Ending(OUR_FAULT, f"the service failed: {detail}{_by_id(error.request_id)}")


def _refusal(error: RequestRefused, asked: Asked) -> str:
    """Why, and by which option it is amended: the service speaks of fields."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        why = "takes no key like this one" if asked.with_key else "wants a key"
        return f"the service {why}; see --key-file and GAOLER_API_KEY"
    if re.match(r"steps\[\d+\]\.limits\.wall_ms\b", error.detail):
        more = "" if asked.for_grading else "; --priority grading may have more time"
        return f"{error.detail} (see --timeout-ms{more})"
    if re.match(r"steps\[\d+\]\.limits\.memory_bytes\b", error.detail):
        return f"{error.detail} (see --memory-bytes)"
    return error.detail


def _by_id(request_id: str | None) -> str:
    """What the operator needs to find it in the log."""
    return "" if request_id is None else f" (request {request_id})"


# --- results ------------------------------------------------------------------------------


def _of_build(result: Result, request_id: str | None) -> Ending:
    ending = _of_task("the build", result, request_id)
    return Ending(ending.code, ending.line or "the build failed, the program was not run")


def _of_task(who: str, result: Result, request_id: str | None) -> Ending:
    outcome = result.outcome
    if outcome == "completed" and result.exit_code is not None:
        return Ending(result.exit_code, _exec_failure(who, result.reason))
    if outcome == "signaled" and result.signal is not None:
        return Ending(SIGNAL_BASE + result.signal, _signal_line(who, result))
    if outcome == "timed_out":
        which = f"{result.reason} limit" if result.reason else "time limit"
        after = f"after {result.stats.wall_ms} ms"
        return Ending(OUT_OF_TIME, f"out of time: {who} was killed at its {which}, {after}")
    if outcome == "not_started" and result.reason == "budget":
        why = "was not started, what is left of the request's time cannot hold it"
        return Ending(OUT_OF_TIME, f"out of time: {who} {why}")
    if outcome in _LIMITS:
        return Ending(LIMIT, f"limit: {who} {_LIMITS[outcome]}")
    what = outcome if result.reason is None else f"{outcome}, {result.reason}"
    return Ending(OUR_FAULT, f"the service failed: {who}: {what}{_by_id(request_id)}")


_LIMITS = {
    "memory_limit": "used more memory than it may",
    "output_limit": "wrote more than it may; what was kept is shown",
    "policy_violation": "made a system call that its profile forbids",
}


def _exec_failure(who: str, reason: str | None) -> str | None:
    if reason == "command_not_found":
        return f"{who} could not be started: the service's sandbox has no such command"
    if reason == "not_executable":
        return f"{who} could not be started: its command is not executable"
    return None


def _signal_line(who: str, result: Result) -> str:
    try:
        name = signal.Signals(result.signal or 0).name
    except ValueError:  # the real-time signals between the first and the last have none
        name = f"signal {result.signal}"
    return f"{who} was ended by {name}" + (
        ", a file passed its size limit" if result.reason == "file_size" else ""
    )
