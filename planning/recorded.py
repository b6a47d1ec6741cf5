"""Requests that were recorded: the service's own log, or JSON lines of the same fields.

docs/capacity.md has the format.  A request is an object on a line.  What a service says beside
its requests is passed over: a line that does not begin with `{`, one whose `event` is not
"request", and that of a request which never came to the queue: it has no `budget_ms`.
Instants are counted from the first arrival.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gaoler.actors.policy.slots import GRADING, INTERACTIVE
from gaoler.config.kinds import SettingsError, refusal, shown
from gaoler.planning.times import NS_PER_MS

MOST = 2**53  # of any number: beyond it JSON readers disagree


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as a log has it."""

    arrival_ns: int
    priority: str
    slots: int
    memory_bytes: int
    budget_ms: int
    run_ns: int | None  # None: it was refused, so nobody knows
    setup_ns: int | None = None  # None: as the scenario has it
    evaluation_id: str | None = None
    wait: bool = True


@dataclass(frozen=True, slots=True)
class Log:
    """What was read."""

    requests: tuple[Recorded, ...]  # in the order of their arrival; the first comes at 0
    passed_over: int  # lines that are about something else

    @property
    def without_run_time(self) -> int:
        """How many were refused, so that their run times have to be drawn."""
        return sum(request.run_ns is None for request in self.requests)


class _LineError(Exception):
    """What is wrong with a line."""


def read_log(path: Path) -> Log:
    """Every request of a log.  SettingsError names the file, the line and the field."""
    try:
        with path.open(encoding="utf-8") as opened:
            return _log(path, opened)
    except OSError as problem:
        raise refusal("--log", path, f"a file that can be read; {problem.strerror}") from None
    except UnicodeDecodeError:
        raise refusal("--log", path, "a file of UTF-8 text") from None


def _log(path: Path, lines: Iterable[str]) -> Log:
    found: list[Recorded] = []
    passed_over = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = _request(line)
        except _LineError as problem:
            raise SettingsError(f"{path}:{number}: {problem}") from None
        if request is None:
            passed_over += 1
        else:
            found.append(request)
    if not found:
        raise SettingsError(f"{path}: {_expected(passed_over)}")
    return Log(tuple(_from_the_first(found)), passed_over)


def _expected(passed_over: int) -> str:
    return (
        f"there is no request in it that came to the queue ({passed_over} lines passed over); "
        "expected is a JSON object a line, such as the service's log has with "
        '"event": "request"'
    )


def _from_the_first(found: list[Recorded]) -> Iterator[Recorded]:
    found.sort(key=lambda request: request.arrival_ns)
    first_ns = found[0].arrival_ns
    return (replace(request, arrival_ns=request.arrival_ns - first_ns) for request in found)


# --- one line -----------------------------------------------------------------------------


def _request(line: str) -> Recorded | None:
    """The request of a line, None where it is about something else."""
    if not line.lstrip().startswith("{"):
        return None  # a service's log has also what is written for people
    try:
        fields = json.loads(line)
    except ValueError:
        raise _LineError("allowed is a whole JSON object on the line") from None
    if fields.get("event", "request") != "request" or fields.get("budget_ms") is None:
        return None
    run_ns = _ns(fields, "run_ms", optional=True)
    return Recorded(
        arrival_ns=_arrival_ns(fields),
        priority=_priority(fields),
        slots=_whole(fields, "slots", 1, 1),
        memory_bytes=_whole(fields, "memory_bytes", 0, 0),
        budget_ms=_whole(fields, "budget_ms", 1),
        run_ns=run_ns,
        setup_ns=_ns(fields, "setup_ms", optional=True) if run_ns is not None else None,
        evaluation_id=_evaluation(fields),
        wait=fields.get("wait") is not False,
    )


def _arrival_ns(fields: Mapping[str, object]) -> int:
    """`arrival_ms`, else when the line was written less how long the request took.

    A service writes a request's line at its end.
    """
    if "arrival_ms" in fields:
        return _ns(fields, "arrival_ms") or 0
    written_ns = _written_ns(fields)
    if "duration_ms" in fields:
        return written_ns - (_ns(fields, "duration_ms") or 0)
    parts = ("queued_ms", "setup_ms", "run_ms")
    return written_ns - sum(_ns(fields, part, optional=True) or 0 for part in parts)


def _written_ns(fields: Mapping[str, object]) -> int:
    """`time` in ISO 8601, or `ts` in seconds since 1970."""
    if "ts" in fields:
        return round(_number(fields, "ts") * 1_000) * NS_PER_MS
    text = fields.get("time")
    try:
        moment = datetime.datetime.fromisoformat(text if isinstance(text, str) else "")
    except ValueError:
        raise _LineError(_allowed(fields, "time", "an ISO 8601 time, where there is no arrival_ms"))
    # A time without a zone is taken as UTC: only the distances count.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (moment - epoch) // datetime.timedelta(microseconds=1) * 1_000


def _priority(fields: Mapping[str, object]) -> str:
    priority = fields.get("priority")
    if priority not in (INTERACTIVE, GRADING):
        raise _LineError(_allowed(fields, "priority", f"{INTERACTIVE} or {GRADING}"))
    return str(priority)


def _evaluation(fields: Mapping[str, object]) -> str | None:
    name = "evaluation_id" if "evaluation_id" in fields else "evaluation"
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _LineError(_allowed(fields, name, "a string or null"))
    return value


def _ns(fields: Mapping[str, object], name: str, *, optional: bool = False) -> int | None:
    """A field in milliseconds, which may have a fraction."""
    if optional and fields.get(name) is None:
        return None
    return round(_number(fields, name) * NS_PER_MS)


def _whole(fields: Mapping[str, object], name: str, least: int, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise _LineError(_allowed(fields, name, f"an integer from {least}"))
    return value


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _LineError(_allowed(fields, name, "a number from 0"))
    if not (math.isfinite(value) and 0 <= value <= MOST):
        raise _LineError(_allowed(fields, name, "a number from 0"))
    return value


def _allowed(fields: Mapping[str, object], name: str, allowed: str) -> str:
    written = f"{name}={shown(fields[name])}" if name in fields else f"{name} is missing"
    return f"{written}: allowed is {allowed}"


# --- writing ------------------------------------------------------------------------------


def line_of(request: Recorded) -> str:
    """The request as one line that `read_log` reads."""
    fields: dict[str, object] = {
        "event": "request",
        "arrival_ms": request.arrival_ns / NS_PER_MS,
        "priority": request.priority,
        "slots": request.slots,
        "memory_bytes": request.memory_bytes,
        "budget_ms": request.budget_ms,
        "evaluation_id": request.evaluation_id,
    }
    if request.setup_ns is not None:
        fields["setup_ms"] = request.setup_ns / NS_PER_MS
    if request.run_ns is not None:
        fields["run_ms"] = request.run_ns / NS_PER_MS
    if not request.wait:
        fields["wait"] = False
    return json.dumps(fields)
