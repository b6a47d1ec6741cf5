"""Fuzzed: the payload of TASK_DONE.

Input: a "{" begins the JSON, after which a NUL and the blobs come, and the length is put before
it; anything else is a payload as it is.
"""

from __future__ import annotations

import struct

from gaoler.sandbox import wire
from gaoler.sandbox.job import Stats, TaskResult
from tests.fuzzing.fuzz_job import check_short

LONGEST_BYTES = 2_000
WORDS = (
    *(b'"%s":' % name.encode() for name in ("at", "outcome", "reason", "exit_code", "signal")),
    *(b'"%s":' % name.encode() for name in ("timed_out", "ended_ns", "cut_by_budget", "cut")),
    *(b'"%s":' % name.encode() for name in ("stats", "sizes", "files")),
    *(b"null", b"true", b"false", b"-1", b"1e400", b"NaN", b"4611686018427387905", b"[0,0]"),
    *(rb'"\ud800"', b"[0,0,0,0,0,0,0]", b'["a",null,1]', b'"completed"', b"\0"),
)
MOST = 1 << 62


def fuzz(data: bytes) -> None:
    if data.startswith(b"{"):
        meta, _, blobs = data.partition(b"\0")
        data = struct.pack("<I", len(meta)) + meta + blobs
    check(data)


def check(payload: bytes) -> None:
    """A payload is a ProtocolError, or a result whose every value may stand in an answer."""
    try:
        step, task, result = wire.unpack_result(payload)
    except wire.ProtocolError as error:
        check_short(error)
        return
    check_result(step, task, result)
    assert wire.unpack_result(wire.pack_result(step, task, result)) == (step, task, result)
    files_bytes = sum(len(file.data) for file in result.files)
    assert len(result.stdout) + len(result.stderr) + files_bytes <= len(payload)


def check_result(step: int, task: int, result: TaskResult) -> None:
    numbers = [getattr(result.stats, name) for name in Stats.__slots__]
    numbers += [step, task, result.ended_ns]
    numbers += [n for n in (result.exit_code, result.signal) if n is not None]
    assert all(type(number) is int and 0 <= number <= MOST for number in numbers)
    flags = [result.timed_out, result.cut_by_budget]
    flags += [result.stdout_truncated, result.stderr_truncated]
    assert all(type(flag) is bool for flag in flags)
    texts = [result.outcome, *(file.path for file in result.files)]
    texts += [file.error for file in result.files if file.error is not None]
    texts += [] if result.reason is None else [result.reason]
    assert all(type(text) is str and text.encode() is not None for text in texts)
