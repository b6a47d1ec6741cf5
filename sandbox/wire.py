"""The bytes between worker, warden, jailer and supervisor.

A job travels as one sealed memfd:

    8 bytes   magic
    u32       length of the header
    header    JSON: the numbers that root's code needs, and where each section lies
    sections  for each task JSON with what only the task's own process reads
    blobs     stdin and input files, as they are

Root's code reads the header alone, and every number in it is checked against the warden's
maxima; the strings of a client are first parsed by the locked-down process that will
become the task.

Answers come back as frames on a stream socket:

    u32       length of what follows, kind included
    u8        kind
    payload   TASK_DONE: see `pack_result`; the others: JSON

Integers are little endian.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fcntl import (
    F_ADD_SEALS,
    F_GET_SEALS,
    F_SEAL_GROW,
    F_SEAL_SEAL,
    F_SEAL_SHRINK,
    F_SEAL_WRITE,
    fcntl,
)
from typing import Any, TypeVar

from gaoler.sandbox.job import Collected, Job, Limits, Stats, Task, TaskResult

MAGIC = b"GAOLJOB1"
SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE
LONGEST_HEADER = 4 << 20

TASK_DONE = 1
FINISHED = 2
FAILED = 3
GO = 4  # jailer to supervisor only
KINDS = (TASK_DONE, FINISHED, FAILED, GO)

_T = TypeVar("_T")
_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<IB")


class ProtocolError(Exception):
    """Bytes that the protocol does not allow."""


# --- jobs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """A run of bytes in the job's memfd."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class TaskHeader:
    """What the supervisor knows of its task: numbers, and where the rest lies."""

    section: Range
    stdin: Range
    profile: str
    limits: Limits
    wall_promised: bool
    collect: Range  # JSON list of paths, read by the collecting child alone


@dataclass(frozen=True, slots=True)
class StepHeader:
    tasks: tuple[TaskHeader, ...]
    pipes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class JobHeader:
    steps: tuple[StepHeader, ...]
    deadline_ns: int
    stop_on_failure: bool
    workspace_bytes: int
    output_bytes: int


class _Layout:
    """Lays blobs and sections out one after the other behind the header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def put(self, data: bytes) -> list[int]:
        """Append, and say where: [offset from the end of the header, length]."""
        start = self.length
        self.parts.append(data)
        self.length += len(data)
        return [start, len(data)]


def write_job(job: Job) -> int:
    """A sealed memfd that holds the job.  The caller owns the descriptor."""
    layout = _Layout()
    steps = [
        {
            "tasks": [_task_header(task, layout) for task in step.tasks],
            "pipes": [[pipe.source, pipe.target] for pipe in step.pipes],
        }
        for step in job.steps
    ]
    header = _dump(
        {
            "steps": steps,
            "deadline_ns": job.deadline_ns,
            "stop_on_failure": job.stop_on_failure,
            "workspace_bytes": job.workspace_bytes,
            "output_bytes": job.output_bytes,
        }
    )
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(MAGIC + _U32.pack(len(header)) + header)
            file.writelines(layout.parts)
        fcntl(descriptor, F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _task_header(task: Task, layout: _Layout) -> dict[str, Any]:
    section = {
        "cmd": task.cmd,
        "args": task.args,
        "env": task.env,
        "working_dir": task.working_dir,
        "files": [[f.path, f.mode, *layout.put(f.data)] for f in task.files],
    }
    limits = task.limits
    return {
        "stdin": layout.put(task.stdin),
        "collect": layout.put(_dump(task.collect)) if task.collect else [0, 0],
        "section": layout.put(_dump(section)),
        "profile": task.profile,
        "wall_promised": task.wall_promised,
        "limits": [getattr(limits, name) for name in Limits.__slots__],
    }


def sealed_size(descriptor: int) -> int:
    """The size of a memfd that nobody can change any more.  Raises ProtocolError."""
    try:
        seals = fcntl(descriptor, F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("not a memfd") from error
    if seals & SEALS != SEALS:
        raise ProtocolError("the memfd is not sealed")
    return os.fstat(descriptor).st_size


def read_job(descriptor: int) -> JobHeader:
    """The header of a job.  Raises ProtocolError for anything that is not one."""
    size = sealed_size(descriptor)
    head = os.pread(descriptor, len(MAGIC) + 4, 0)
    if len(head) != len(MAGIC) + 4 or not head.startswith(MAGIC):
        raise ProtocolError("not a job")
    length = _U32.unpack_from(head, len(MAGIC))[0]
    base = len(head) + length
    if length > LONGEST_HEADER or base > size:
        raise ProtocolError("the header's length is off")
    try:
        return _job_header(json.loads(os.pread(descriptor, length, len(head))), base, size)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ProtocolError(f"the header is malformed: {_in_short(error)}") from error


def _job_header(raw: dict[str, Any], base: int, size: int) -> JobHeader:
    steps = tuple(
        StepHeader(
            tuple(_read_task(task, base, size) for task in step["tasks"]),
            tuple((_whole(a), _whole(b)) for a, b in step["pipes"]),
        )
        for step in raw["steps"]
    )
    for step in steps:
        ends = [end for pipe in step.pipes for end in pipe]
        if not step.tasks or any(end >= len(step.tasks) for end in ends):
            raise ValueError("a step is empty or a pipe leads nowhere")
        sources, targets = ({pipe[side] for pipe in step.pipes} for side in (0, 1))
        if not len(sources) == len(targets) == len(step.pipes) or any(
            source == target for source, target in step.pipes
        ):
            raise ValueError("a task is connected to itself, or twice")
    return JobHeader(
        steps,
        _whole(raw["deadline_ns"]),
        _flag(raw["stop_on_failure"]),
        _whole(raw["workspace_bytes"]),
        _whole(raw["output_bytes"]),
    )


def _read_task(raw: dict[str, Any], base: int, size: int) -> TaskHeader:
    def place(name: str) -> Range:
        offset, length = (_whole(n) for n in raw[name])
        if base + offset + length > size:
            raise ValueError(f"{name} lies beyond the end")
        return Range(base + offset, length)

    return TaskHeader(
        section=place("section"),
        stdin=place("stdin"),
        collect=place("collect"),
        profile=_text(raw["profile"]),
        limits=Limits(*(_whole(n) for n in raw["limits"])),
        wall_promised=_flag(raw["wall_promised"]),
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0 or value > 1 << 62:
        raise ValueError(f"not a count: {value!r:.40}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"not a flag: {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"not a text: {value!r:.40}")
    value.encode()  # refuses lone surrogates
    return value


def _or_none(read: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else read(value)


def _in_short(error: Exception) -> str:
    """Not repr: a UnicodeDecodeError's has all of the bytes in it."""
    return f"{type(error).__name__}: {error!s:.80}"


def read_range(descriptor: int, place: Range) -> bytes:
    """The bytes of a range; the memfd is sealed, so a short read is a fault of ours."""
    parts, offset, left = [], place.offset, place.length
    while left:
        part = os.pread(descriptor, left, offset)
        if not part:
            raise ProtocolError("the memfd ends early")
        parts.append(part)
        offset += len(part)
        left -= len(part)
    return b"".join(parts)


def file_base(descriptor: int) -> int:
    """Where sections and blobs begin: file offsets in a task's section count from here."""
    head = os.pread(descriptor, len(MAGIC) + 4, 0)
    return int(len(head) + _U32.unpack_from(head, len(MAGIC))[0])


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """What came by SCM_RIGHTS with a message; the caller owns them."""
    found: list[int] = []
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += memoryview(raw[: len(raw) - len(raw) % 4]).cast("i").tolist()
    return found


# --- frames -------------------------------------------------------------------------------


def frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) + 1, kind) + payload


def json_frame(kind: int, value: object) -> bytes:
    return frame(kind, _dump(value))


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Decoder:
    """Cuts a byte stream into frames; refuses one that is longer than it may be."""

    def __init__(self, longest: int) -> None:
        self._buffer = bytearray()
        self._longest = longest

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are whole now.  Raises ProtocolError."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if length < 1 or length > self._longest or kind not in KINDS:
                raise ProtocolError(f"a frame of kind {kind} and length {length}")
            end = _U32.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield kind, payload

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)


def read_json(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("not an object")
    return value


_STATS = tuple(Stats.__slots__)


def pack_result(step: int, task: int, result: TaskResult) -> bytes:
    """A TASK_DONE payload: u32 length of the JSON, the JSON, then stdout, stderr, files."""
    meta = {
        "at": [step, task],
        "outcome": result.outcome,
        "reason": result.reason,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "ended_ns": result.ended_ns,
        "cut_by_budget": result.cut_by_budget,
        "cut": [result.stdout_truncated, result.stderr_truncated],
        "stats": [getattr(result.stats, name) for name in _STATS],
        "sizes": [len(result.stdout), len(result.stderr)],
        "files": [[f.path, f.error, len(f.data)] for f in result.files],
    }
    dumped = _dump(meta)
    blobs = [result.stdout, result.stderr, *(f.data for f in result.files)]
    return b"".join([_U32.pack(len(dumped)), dumped, *blobs])


def unpack_result(payload: bytes) -> tuple[int, int, TaskResult]:
    """(step, task, result).  Raises ProtocolError."""
    try:
        return _unpack_result(payload)
    except (KeyError, TypeError, ValueError, IndexError, struct.error, RecursionError) as error:
        raise ProtocolError(f"a result that cannot be read: {_in_short(error)}") from error


def _unpack_result(payload: bytes) -> tuple[int, int, TaskResult]:
    start = _U32.size + _U32.unpack_from(payload)[0]
    meta = json.loads(payload[_U32.size : start])
    sizes = [_whole(n) for n in meta["sizes"]] + [_whole(f[2]) for f in meta["files"]]
    if start + sum(sizes) != len(payload):
        raise ValueError("the sizes do not add up")
    blobs = []
    for size in sizes:
        blobs.append(payload[start : start + size])
        start += size
    step, task = (_whole(n) for n in meta["at"])
    files = tuple(
        Collected(_text(path), data, _or_none(_text, error))
        for (path, error, _), data in zip(meta["files"], blobs[2:], strict=True)
    )
    return (
        step,
        task,
        TaskResult(
            outcome=_text(meta["outcome"]),
            reason=_or_none(_text, meta["reason"]),
            exit_code=_or_none(_whole, meta["exit_code"]),
            signal=_or_none(_whole, meta["signal"]),
            timed_out=_flag(meta["timed_out"]),
            stdout=blobs[0],
            stderr=blobs[1],
            stdout_truncated=_flag(meta["cut"][0]),
            stderr_truncated=_flag(meta["cut"][1]),
            files=files,
            stats=Stats(*(_whole(n) for n in meta["stats"])),
            ended_ns=_whole(meta["ended_ns"]),
            cut_by_budget=_flag(meta["cut_by_budget"]),
        ),
    )
