"""What a service answered: results to be read, or the error that its refusal means.  Pure.

A field that is not known here is passed over, and one that is missing has its default: the
service may be newer or older than this client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from gaoler.http.client_errors import (
    AnswerGarbled,
    Queue,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerFailed,
    RunnerUnavailable,
)
from gaoler.http.client_types import Request, Task, tasks_of

_LONGEST_S = 10**9  # whoever says more means never


class Stats(msgspec.Struct, frozen=True):
    """What a task used."""

    wall_ms: int = 0
    cpu_user_ms: int = 0
    cpu_system_ms: int = 0
    memory_peak_bytes: int = 0
    pids_peak: int = 0
    oom_kills: int = 0
    pids_limit_hits: int = 0


class CollectedFile(msgspec.Struct, frozen=True):
    """A file that a task left; with `error` set there is nothing else."""

    size_bytes: int = 0
    sha256: str | None = None
    content: str | None = None
    base64: bytes | None = None  # decoded; where the content is not UTF-8
    file_id: str | None = None  # where it went into the file store
    error: str | None = None

    @property
    def data(self) -> bytes | None:
        """The exact bytes, None where they did not come with the answer."""
        if self.base64 is not None:
            return self.base64
        return None if self.content is None else self.content.encode()


class Result(msgspec.Struct, frozen=True):
    """What became of one task."""

    outcome: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stdout: str = ""  # with U+FFFD for what is not UTF-8
    stderr: str = ""
    stdout_base64: bytes | None = None  # decoded; where the text cannot say it
    stderr_base64: bytes | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: dict[str, CollectedFile] = {}  # by the path as it was asked for
    cached: bool = False
    stats: Stats = Stats()
    stub: bool = False  # of a service that runs nothing

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
        """It ended by itself, with exit code 0."""
        return self.outcome == "completed" and self.exit_code == 0


class Timing(msgspec.Struct, frozen=True):
    """Where the time went; `budget_ms` is what the service allowed."""

    queued_ms: int = 0
    setup_ms: int = 0
    run_ms: int = 0
    budget_ms: int | None = None


# Of a step that was a Task one result, else one for each task.
StepResult = Result | tuple[Result, ...]


class Answer(msgspec.Struct, frozen=True):
    """The answer of `execute`.  `results` has the shape of the request's steps."""

    results: tuple[StepResult, ...]
    request_id: str | None = None
    overrun: bool = False  # the budget cut something, or kept it from starting
    cached_steps: int = 0
    ignored_fields: tuple[str, ...] = ()
    timing: Timing = Timing()

    @property
    def each(self) -> tuple[Result, ...]:
        """All results in the order of the tasks, whatever the shape of the steps."""
        return tuple(_flat(self.results))


def _flat(results: tuple[StepResult, ...]) -> Iterator[Result]:
    for each in results:
        yield from (each,) if isinstance(each, Result) else each


class Arrived(msgspec.Struct, frozen=True):
    """A whole answer of HTTP."""

    status: int
    headers: Mapping[str, str]  # that take a name in any case
    content: bytes


class _Health(msgspec.Struct, frozen=True):
    status: str


def read_execute(arrived: Arrived, request: Request) -> Answer:
    """The answer to this request.  Raises RunnerError."""
    answer = _decoded(arrived, Answer)
    got = [0 if isinstance(each, Result) else len(each) for each in answer.results]
    if got != [0 if isinstance(step, Task) else len(tasks_of(step)) for step in request.steps]:
        raise _garbled(arrived, "its results have not the shape of the steps")
    return answer


def read_health(arrived: Arrived) -> None:
    """Nothing, where the service is ready.  Raises RunnerError."""
    said = _decoded(arrived, _Health).status
    if said != "ok":
        raise RunnerUnavailable(f"it says that it is {said!a}", status=arrived.status)


T = TypeVar("T")


def _decoded(arrived: Arrived, shape: type[T]) -> T:
    if arrived.status != HTTPStatus.OK:
        raise refusal(arrived)
    try:
        return msgspec.json.decode(arrived.content, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _garbled(arrived, str(error)) from error


def _garbled(arrived: Arrived, why: str) -> AnswerGarbled:
    request_id = arrived.headers.get("X-Request-Id")
    return AnswerGarbled(why, status=arrived.status, request_id=request_id)


# --- refusals -----------------------------------------------------------------------------


class _Problem(msgspec.Struct, frozen=True):
    """What is read of application/problem+json."""

    detail: str = ""
    code: str | None = None
    reason: str | None = None
    request_id: str | None = None
    queue: Any = None


def refusal(arrived: Arrived) -> RunnerError:
    """What an answer with any status but 200 means, with as much as its body tells."""
    problem = _problem(arrived.content)
    headers = arrived.headers
    detail = problem.detail or _by_status(arrived.status)
    if "Location" in headers:
        detail = f"{detail}, it points to {headers['Location']}"
    retry_after = headers.get("Retry-After", "")
    return _kind(arrived.status, problem)(
        detail,
        status=arrived.status,
        code=problem.code,
        reason=problem.reason,
        request_id=problem.request_id or headers.get("X-Request-Id"),
        retry_after_s=_seconds(retry_after),
        queue=_queue(problem.queue),
    )


def _kind(status: int, problem: _Problem) -> type[RunnerError]:
    busy = problem.reason == "busy" or problem.code == "capacity_exhausted"
    if status == HTTPStatus.TOO_MANY_REQUESTS or (
        status == HTTPStatus.SERVICE_UNAVAILABLE and busy
    ):
        return RunnerBusy
    # The service itself never says 502: that is a proxy that does not reach it.
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE):
        return RunnerUnavailable
    return RequestRefused if 300 <= status < 500 else RunnerFailed


def _problem(content: bytes) -> _Problem:
    try:
        return msgspec.json.decode(content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Problem()  # a proxy's page


def _seconds(retry_after: str) -> int | None:
    """Whole seconds; a date, which this service never sends and a proxy may, counts as none."""
    if not re.fullmatch("[0-9]{1,99}", retry_after):
        return None
    return min(int(retry_after), _LONGEST_S)


def _queue(value: object) -> Queue | None:
    try:
        return None if value is None else msgspec.convert(value, Queue)
    except msgspec.ValidationError:
        return None


def _by_status(status: int) -> str:
    try:
        return f"status {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"
