"""The body of `execute` (docs/api.md) from plain values to checked, frozen ones.

`read_execute` looks at shapes, types and spellings alone; what this server allows is
`gaoler.http.admit`'s business.  Nothing is coerced: true is no integer, 1.0 is no integer,
null is no value.  Every refusal names its field by the JSON path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gaoler.http import content, paths
from gaoler.http.errors import Problem, invalid, over_limit
from gaoler.http.paths import quoted

# Linux takes no argument or variable (with its name and "=") longer than this:
# MAX_ARG_STRLEN, without the closing NUL.
ARGUMENT_BYTES = 131_071

IDENTITY_CHARACTERS = 128

_UTF8_BYTES = 4  # the most that one character takes

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Filled = Annotated[str, Meta(min_length=1)]


# What nobody needs more of; without a bound, checking alone would take seconds.
MOST_ARGUMENTS = 10_000
MOST_VARIABLES = 1_000
MOST_COLLECTED = 1_000
LONGEST_UNKNOWN_FIELD = 200
MOST_UNKNOWN_FIELDS = 100


class Bounds(msgspec.Struct, frozen=True):
    """Counts that are refused before the work of reading so much is done."""

    steps: int
    parallel_tasks: int
    files: int  # of all tasks together


# --- the shapes as they come ---------------------------------------------------------------


class LimitsGiven(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`limits` of a task; what the client left out is UNSET."""

    wall_ms: Natural | UnsetType = UNSET
    cpu_ms: Natural | UnsetType = UNSET
    memory_bytes: Natural | UnsetType = UNSET
    pids: Natural | UnsetType = UNSET
    output_bytes: Natural | UnsetType = UNSET
    file_bytes: Natural | UnsetType = UNSET
    stack_bytes: Natural | UnsetType = UNSET


class _TaskBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cmd: Filled
    args: list[str] = []
    env: dict[str, Any] = {}
    stdin: Any = ""
    files: dict[str, Any] = {}
    working_dir: str = "."
    profile: str | UnsetType = UNSET
    role: Literal["build", "case"] = "case"
    limits: LimitsGiven = LimitsGiven()
    collect: list[Any] = []
    cacheable: bool = False


class _CollectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    store: bool = False


class _PipeBody(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"source": "from", "target": "to"},
):
    source: tuple[Natural, Literal["stdout"]]
    target: tuple[Natural, Literal["stdin"]]


class _StepBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tasks: Annotated[list[Any], Meta(min_length=1)]
    pipes: list[_PipeBody] = []


class _Body(msgspec.Struct, frozen=True):
    steps: Annotated[list[Any], Meta(min_length=1)]
    priority: Literal["interactive", "grading"] = "interactive"
    action: Literal["run", "project"] = "run"
    budget_ms: Positive | UnsetType = UNSET
    evaluation_id: str | UnsetType = UNSET
    attempt_id: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    purpose: Literal["run", "try"] = "run"
    stop_on_failure: bool = False
    wait: bool = True


# --- what comes out ------------------------------------------------------------------------


class FileGiven(msgspec.Struct, frozen=True):
    """A file to be written before the task starts."""

    path: str  # normal form
    mode: int
    content: content.Content


class CollectGiven(msgspec.Struct, frozen=True):
    """A file to be returned after the task has ended."""

    written: str  # as the client spelled it, which is the key in the answer
    path: str  # normal form
    store: bool
    where: str


class TaskGiven(msgspec.Struct, frozen=True):
    """A checked task, with what the client left out still left out."""

    where: str  # its JSON path, such as steps[0][1]
    cmd: str
    args: tuple[str, ...]
    env: dict[str, str]
    stdin: content.Content
    files: tuple[FileGiven, ...]
    working_dir: str
    profile: str | None
    role: str
    limits: LimitsGiven
    collect: tuple[CollectGiven, ...]
    cacheable: bool


class PipeGiven(msgspec.Struct, frozen=True):
    """From one task's stdout to another's stdin, by index in their step."""

    source: int
    target: int


class StepGiven(msgspec.Struct, frozen=True):
    """Tasks that run side by side; `single`: it was written as one task, without a list."""

    where: str
    tasks: tuple[TaskGiven, ...]
    pipes: tuple[PipeGiven, ...]
    single: bool


class ExecuteGiven(msgspec.Struct, frozen=True):
    """A checked body of `execute`."""

    steps: tuple[StepGiven, ...]
    priority: str  # "grading" for every project
    action: str
    budget_ms: int | None
    evaluation_id: str | None
    attempt_id: str | None
    subject: str | None
    purpose: str
    stop_on_failure: bool
    wait: bool
    ignored_fields: tuple[str, ...]


# --- reading -------------------------------------------------------------------------------


def read_execute(value: object, bounds: Bounds) -> ExecuteGiven:
    """The body as a checked request.

    Raises Problem 400 `invalid_request`, or 422 `limits_exceeded` past one of `bounds`.
    """
    body = _convert(value, _Body, "")
    assert isinstance(value, dict)  # else _convert had refused it
    _check_purpose(body)
    return ExecuteGiven(
        steps=_read_steps(body.steps, bounds),
        priority="grading" if body.action == "project" else body.priority,
        action=body.action,
        budget_ms=_or_none(body.budget_ms),
        evaluation_id=_identity(body.evaluation_id, "evaluation_id"),
        attempt_id=_identity(body.attempt_id, "attempt_id"),
        subject=_identity(body.subject, "subject"),
        purpose=body.purpose,
        stop_on_failure=body.stop_on_failure,
        wait=body.wait,
        ignored_fields=_unknown_fields(value),
    )


def _unknown_fields(value: dict[str, Any]) -> tuple[str, ...]:
    known = {field.encode_name for field in msgspec.structs.fields(_Body)}
    unknown = tuple(name for name in value if name not in known)
    if len(unknown) > MOST_UNKNOWN_FIELDS:
        raise Problem("invalid_request", f"more than {MOST_UNKNOWN_FIELDS} unknown fields")
    for name in unknown:
        if len(name) > LONGEST_UNKNOWN_FIELD:  # it would come back as it is
            why = f"longer than the {LONGEST_UNKNOWN_FIELD} characters of any field"
            raise invalid(quoted(name), why)
    return unknown


def _check_purpose(body: _Body) -> None:
    if body.purpose != "try":
        return
    if body.subject is UNSET:
        raise invalid("purpose", '"try" needs a subject')
    if body.priority != "interactive" or body.action == "project":
        raise invalid("purpose", '"try" is for interactive requests alone')


def _identity(given: str | UnsetType, path: str) -> str | None:
    if given is UNSET:
        return None
    if not 1 <= len(given) <= IDENTITY_CHARACTERS:
        raise invalid(path, f"expected 1 to {IDENTITY_CHARACTERS} characters")
    if any(unicodedata.category(character) == "Cc" for character in given):
        raise invalid(path, "a control character")
    return given


def _read_steps(values: list[Any], bounds: Bounds) -> tuple[StepGiven, ...]:
    if len(values) > bounds.steps:
        raise over_limit("steps", f"{len(values)} steps, at most {bounds.steps} are allowed")
    steps = []
    files = 0
    for index, value in enumerate(values):
        step = _read_step(value, f"steps[{index}]", bounds)
        files += sum(len(task.files) for task in step.tasks)
        if files > bounds.files:
            raise over_limit(step.where, f"more than {bounds.files} files in the request")
        steps.append(step)
    return tuple(steps)


def _read_step(value: object, where: str, bounds: Bounds) -> StepGiven:
    if isinstance(value, list):
        if not value:
            raise invalid(where, "an empty parallel step")
        return StepGiven(where, _read_tasks(value, where, bounds), (), False)
    if isinstance(value, dict) and ("tasks" in value or "pipes" in value):
        body = _convert(value, _StepBody, where)
        tasks = _read_tasks(body.tasks, f"{where}.tasks", bounds)
        return StepGiven(where, tasks, _read_pipes(body.pipes, tasks, where), False)
    return StepGiven(where, (_read_task(value, where, bounds),), (), True)


def _read_tasks(values: list[Any], where: str, bounds: Bounds) -> tuple[TaskGiven, ...]:
    most = bounds.parallel_tasks
    if len(values) > most:
        raise over_limit(where, f"{len(values)} tasks side by side, at most {most} are allowed")
    return tuple(_read_task(each, f"{where}[{i}]", bounds) for i, each in enumerate(values))


def _read_task(value: object, where: str, bounds: Bounds) -> TaskGiven:
    body = _convert(value, _TaskBody, where)
    for name, given, most in (
        ("files", body.files, bounds.files),
        ("args", body.args, MOST_ARGUMENTS),
        ("env", body.env, MOST_VARIABLES),
        ("collect", body.collect, MOST_COLLECTED),
    ):
        if len(given) > most:
            raise over_limit(f"{where}.{name}", f"more than {most} entries")
    _check_strings([body.cmd], lambda _: f"{where}.cmd")
    _check_strings(body.args, lambda index: f"{where}.args[{index}]")
    profile = _or_none(body.profile)
    if profile is not None:
        _check_strings([profile], lambda _: f"{where}.profile")
    return TaskGiven(
        where=where,
        cmd=body.cmd,
        args=tuple(body.args),
        env=_read_environment(body.env, f"{where}.env"),
        stdin=content.content(body.stdin, f"{where}.stdin"),
        files=_read_files(body.files, f"{where}.files"),
        working_dir=paths.folder(body.working_dir, f"{where}.working_dir"),
        profile=profile,
        role=body.role,
        limits=body.limits,
        collect=_read_collect(body.collect, f"{where}.collect"),
        cacheable=body.cacheable,
    )


def _read_environment(given: dict[str, Any], where: str) -> dict[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\0" in name:
            raise invalid(_member(where, name), 'a name that is empty or has a "=" or a NUL')
        if not isinstance(value, str):
            raise invalid(_member(where, name), "expected a string")
    names = list(given)
    pairs = [f"{name}={value}" for name, value in given.items()]
    _check_strings(pairs, lambda index: _member(where, names[index]))
    return given


def _check_strings(values: list[str], where: Any) -> None:
    """Refuse a NUL and what is longer than the kernel takes; `where` names one by its index."""
    for index, value in enumerate(values):
        if "\0" in value:
            raise invalid(where(index), "a NUL")
        if len(value) * _UTF8_BYTES > ARGUMENT_BYTES and len(value.encode()) > ARGUMENT_BYTES:
            raise invalid(where(index), f"longer than {ARGUMENT_BYTES} bytes")


def _read_files(given: dict[str, Any], where: str) -> tuple[FileGiven, ...]:
    files = []
    spelled = {}
    for name, value in given.items():
        here = f"{where}[{quoted(name)}]"
        path = paths.file(name, here)
        file_content, mode = content.file_content(value, here)
        files.append(FileGiven(path, mode, file_content))
        spelled[here] = path
    if len(spelled) < len(files):  # long names that look alike once they are cut
        spelled = {f"{where}[{i}]": each.path for i, each in enumerate(files)}
    paths.check_collisions(spelled)
    return tuple(files)


def _read_collect(given: list[Any], where: str) -> tuple[CollectGiven, ...]:
    entries = []
    for index, value in enumerate(given):
        here = f"{where}[{index}]"
        if isinstance(value, str):
            entry = _CollectBody(value)
        elif isinstance(value, dict):
            entry = _convert(value, _CollectBody, here)
        else:
            raise invalid(here, "expected a string or an object")
        entries.append(CollectGiven(entry.path, paths.file(entry.path, here), entry.store, here))
    return tuple(entries)


def _read_pipes(
    bodies: Iterable[_PipeBody], tasks: tuple[TaskGiven, ...], where: str
) -> tuple[PipeGiven, ...]:
    pipes: list[PipeGiven] = []
    for index, body in enumerate(bodies):
        here = f"{where}.pipes[{index}]"
        pipe = PipeGiven(body.source[0], body.target[0])
        _check_pipe(pipe, pipes, tasks, here)
        pipes.append(pipe)
    return tuple(pipes)


def _check_pipe(
    pipe: PipeGiven, earlier: list[PipeGiven], tasks: tuple[TaskGiven, ...], where: str
) -> None:
    for name, task in (("from", pipe.source), ("to", pipe.target)):
        if task >= len(tasks):
            raise invalid(f"{where}.{name}[0]", f"there is no task {task} in this step")
    if pipe.source == pipe.target:
        raise invalid(where, "a task cannot be connected to itself")
    if any(pipe.source == other.source for other in earlier):
        raise invalid(f"{where}.from", "this stdout is already connected")
    if any(pipe.target == other.target for other in earlier):
        raise invalid(f"{where}.to", "this stdin is already connected")
    if tasks[pipe.target].stdin != content.Inline(b""):
        raise invalid(f"{where}.to", "the task has a stdin of its own")


# --- msgspec's errors in our words ---------------------------------------------------------

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)
_MOST_SHOWN = 160  # of a message, which may have a client's text in it
_FIELD = re.compile(
    r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL
)


def _or_none(value: _T | UnsetType) -> _T | None:
    return None if isinstance(value, UnsetType) else value


def _convert(value: object, shape: type[_S], where: str) -> _S:
    _check_fields(value, shape, where)
    try:
        return msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as error:
        path, why = _in_our_words(str(error))
        raise invalid(_join(where, path), why)


def _check_fields(value: object, shape: type[msgspec.Struct], where: str) -> None:
    """Refuse an unknown field of the converted value itself.

    Of such a one msgspec gives no place, so a name that looks like one would be taken for it.
    """
    if not isinstance(value, dict) or not shape.__struct_config__.forbid_unknown_fields:
        return
    known = shape.__struct_encode_fields__
    for name in value:
        if name not in known:
            raise invalid(_member(where, name), "unknown field")


def _in_our_words(message: str) -> tuple[str, str]:
    """(path below the converted value, what is wrong), from "… - at `$.a[0]`"."""
    # The last of them is msgspec's own; one before it is a client's text.
    what, at, path = message.rpartition(" - at `$")
    if not at:
        what, path = message, ""
    path = path.removesuffix("`").removeprefix(".")
    field = _FIELD.fullmatch(what)
    if field is None:
        shown = what if len(what) <= _MOST_SHOWN else what[:_MOST_SHOWN] + "…"
        return path, shown[:1].lower() + shown[1:]
    why = "unknown field" if field["what"] == "contains unknown" else "required, but missing"
    return _member(path, field["name"]), why


def _join(where: str, path: str) -> str:
    if not where or not path or path.startswith("["):
        return where + path
    return f"{where}.{path}"


def _member(where: str, name: str) -> str:
    """The JSON path of a member: `where.name`, or `where["na me"]` for an odd name."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,79}", name):
        return f"{where}.{name}" if where else name
    return f"{where}[{quoted(name)}]"
