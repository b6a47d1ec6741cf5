"""Fuzzed: a job as root's code reads it, up to the warden's maxima.

Input: a "{" begins the header, after which a NUL and the sections come, and magic and length are
put before it; anything else is the memfd's content as it is.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gaoler.cli import specs
from gaoler.config.settings import Settings
from gaoler.sandbox import wire
from gaoler.sandbox.jailer import Jailer, RequestBroken
from gaoler.sandbox.job import Limits
from gaoler.sandbox.spec import WardenSpec

LONGEST_BYTES = 3_000
WORDS = (
    *(b'"%s":' % name.encode() for name in ("steps", "tasks", "pipes", "deadline_ns", "section")),
    *(b'"%s":' % name.encode() for name in ("stop_on_failure", "workspace_bytes", "limits")),
    *(b'"%s":' % name.encode() for name in ("output_bytes", "stdin", "collect", "profile")),
    *(b'"wall_promised":', b'"standard_v1"', b"[0,0]", b"[0,1]", b"[[0,1]]", b"[1,1,1,1,1,1,1]"),
    *(b"null", b"true", b"false", b"-1", b"1e400", b"NaN", b"4611686018427387905", b"1.0"),
    *(rb'"\ud800"', wire.MAGIC, b"\0"),
)
MOST = 1 << 62


def fuzz(data: bytes) -> None:
    if data.startswith(b"{"):
        header, _, sections = data.partition(b"\0")
        data = content(header, sections)
    check(data)


def content(header: bytes, sections: bytes) -> bytes:
    """What a memfd with this header and what follows it holds."""
    return wire.MAGIC + len(header).to_bytes(4, "little") + header + sections


@contextmanager
def sealed(data: bytes, seals: int = wire.SEALS) -> Iterator[int]:
    """A memfd with that content and those seals."""
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        assert os.write(descriptor, data) == len(data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


def check(data: bytes) -> bool:
    """A memfd is a ProtocolError, or a job that root may believe; True for a job."""
    with sealed(data) as descriptor:
        try:
            header = wire.read_job(descriptor)
        except wire.ProtocolError as error:
            check_short(error)
            check_refused_by_the_jailer(descriptor)
            return False
        check_header(header, descriptor, len(data))
        check_against_maxima(descriptor)
        return True


def check_short(error: wire.ProtocolError) -> None:
    """It goes into a frame, and from there into a log, so it has nothing long of a client's."""
    assert len(wire.json_frame(wire.FAILED, {"stage": f"jailer: {error}"})) < 500


def check_header(header: wire.JobHeader, descriptor: int, size: int) -> None:
    """Every number in its range, every range within the memfd, every pipe between tasks."""
    numbers = [header.deadline_ns, header.workspace_bytes, header.output_bytes]
    assert type(header.stop_on_failure) is bool
    assert wire.file_base(descriptor) <= size
    for step in header.steps:
        assert step.tasks
        check_pipes(step)
        for task in step.tasks:
            numbers += [getattr(task.limits, name) for name in Limits.__slots__]
            assert type(task.profile) is str
            assert type(task.wall_promised) is bool
            for place in (task.section, task.stdin, task.collect):
                assert wire.file_base(descriptor) <= place.offset
                assert 0 <= place.length <= size - place.offset
                assert len(wire.read_range(descriptor, place)) == place.length
    assert all(type(number) is int and 0 <= number <= MOST for number in numbers)


def check_pipes(step: wire.StepHeader) -> None:
    ends = [end for pipe in step.pipes for end in pipe]
    assert all(type(end) is int and 0 <= end < len(step.tasks) for end in ends)
    # An end that is taken twice would be a descriptor that nobody closes.
    assert all(source != target for source, target in step.pipes)
    assert len({source for source, _ in step.pipes}) == len(step.pipes)
    assert len({target for _, target in step.pipes}) == len(step.pipes)


@functools.cache
def spec() -> WardenSpec:
    """The maxima that a job of these tests is held against."""
    return specs.make_spec(Settings(max_concurrency=4), "gaoler-fuzzing", 0, 0)


def jailer(descriptor: int) -> Jailer:
    """As much of a jailer as reads a job."""
    made = Jailer.__new__(Jailer)
    made.spec, made.job = spec(), descriptor
    return made


def check_refused_by_the_jailer(descriptor: int) -> None:
    try:
        jailer(descriptor)._read_header()
    except wire.ProtocolError:
        return
    raise AssertionError("the jailer takes what is no job")


def check_against_maxima(descriptor: int) -> None:
    """What the jailer takes is nowhere above the spec's maxima."""
    most = spec()
    try:
        header = jailer(descriptor)._read_header()
    except RequestBroken:
        return
    # The kernel takes 0 for a workspace without a limit.
    assert 1 <= header.workspace_bytes <= most.workspace_bytes_max
    assert header.output_bytes <= most.output_bytes_max
    assert header.deadline_ns <= time.monotonic_ns() + most.ceiling_ms_max * 1_000_000
    assert 1 <= len(header.steps) <= most.steps_max
    for step in header.steps:
        assert 1 <= len(step.tasks) <= most.width_max
        for task in step.tasks:
            assert task.profile in most.profiles
            for name in Limits.__slots__:
                assert getattr(task.limits, name) <= getattr(most.limits_max, name)
