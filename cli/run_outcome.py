"""From a service's answer to what `gaoler run` says and exits with.  Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import msgspec

from gaoler.cli.service import Garbled, Refused, Unreachable

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


class Stats(msgspec.Struct, frozen=True):
    """What a task used."""

    wall_ms: int = 0
    cpu_user_ms: int = 0
    cpu_system_ms: int = 0
    memory_peak_bytes: int = 0
    pids_limit_hits: int = 0


class Result(msgspec.Struct, frozen=True):
    """One task's result, as much of it as is needed here."""

    outcome: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_base64: bytes | None = None  # msgspec undoes the base64
    stderr_base64: bytes | None = None
    stats: Stats = Stats()
    stub: bool = False

    @property
    def stdout_bytes(self) -> bytes:
        """What the program wrote, byte by byte."""
        return self.stdout.encode() if self.stdout_base64 is None else self.stdout_base64

    @property
    def stderr_bytes(self) -> bytes:
        """As `stdout_bytes`."""
        return self.stderr.encode() if self.stderr_base64 is None else self.stderr_base64

    @property
    def succeeded(self) -> bool:
        return self.outcome == "completed" and self.exit_code == 0


class Timing(msgspec.Struct, frozen=True):
    queued_ms: int = 0


class Ran(msgspec.Struct, frozen=True):
    """The answer of `execute` to single-task steps: a build, where there is one, and a run."""

    results: list[Result]
    timing: Timing = Timing()
    request_id: str | None = None

    @property
    def builds(self) -> list[Result]:
        return self.results[:-1]

    @property
    def program(self) -> Result:
        """The last result; empty where the service gave none at all."""
        return self.results[-1] if self.results else Result("missing")


Reply = Ran | Refused | Garbled | Unreachable


@dataclass(frozen=True, slots=True)
class Ending:
    """An exit code, and the line on stderr that goes with it."""

    code: int
    line: str | None = None


def conclude(reply: Reply) -> Ending:
    """What the whole command comes to."""
    if isinstance(reply, Unreachable):
        return Ending(UNAVAILABLE, f"unavailable: {reply.why}")
    if isinstance(reply, Refused):
        return _of_refusal(reply)
    if isinstance(reply, Garbled):
        return Ending(OUR_FAULT, f"the service's answer makes no sense: {reply.why}")
    if any(result.stub for result in reply.results):
        return Ending(UNAVAILABLE, "unavailable: the service is a stub, it runs nothing")
    for result in reply.builds:
        if not result.succeeded:
            return _of_build(result, reply.request_id)
    return _of_task("the program", reply.program, reply.request_id)


def summary(ran: Ran) -> str | None:
    """Time and memory of what ran last, for a person; None where nothing was started."""
    started = [result for result in ran.results if result.outcome != "not_started"]
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
    if ran.timing.queued_ms:
        said.append(f"{ran.timing.queued_ms / 1000:.2f} s in the queue")
    return ", ".join(said)


# --- refusals -----------------------------------------------------------------------------


def _of_refusal(refused: Refused) -> Ending:
    status, detail = refused.status, refused.detail
    if status == 429 or (status == 503 and _is_busy(refused)):
        seconds = refused.retry_after_s
        later = "" if seconds is None else f"; try again in {seconds} s"
        return Ending(BUSY, f"busy: {detail}{later}")
    # The service itself never says 502: that is a proxy that does not reach it.
    if status in (502, 503):
        return Ending(UNAVAILABLE, f"unavailable: {detail}")
    if status == 401:
        hint = "it takes no key like this one, or wants one; see --key-file and GAOLER_API_KEY"
        return Ending(REFUSED, f"refused: {hint}")
    if 300 <= status < 500:
        return Ending(REFUSED, f"refused: {detail}")
    return Ending(OUR_FAULT, f"the service failed: {detail}{_by_id(refused.request_id)}")


def _is_busy(refused: Refused) -> bool:
    return refused.reason == "busy" or refused.code == "capacity_exhausted"


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
