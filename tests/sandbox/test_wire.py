"""The bytes between the processes: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import fcntl
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaoler.sandbox import wire
from gaoler.sandbox.job import Collected, Stats, TaskResult
from tests.hosting import job, piped, python, task

COUNTS = st.integers(0, 1 << 40)
RESULTS = st.builds(
    TaskResult,
    outcome=st.sampled_from(["completed", "timed_out"]),
    reason=st.none() | st.text(max_size=9),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    timed_out=st.booleans(),
    stdout=st.binary(max_size=99),
    stderr=st.binary(max_size=99),
    stdout_truncated=st.booleans(),
    stderr_truncated=st.booleans(),
    files=st.lists(
        st.builds(
            Collected,
            path=st.text(st.characters(codec="utf-8"), max_size=9),
            data=st.binary(max_size=99),
            error=st.none() | st.just("missing"),
        ),
        max_size=3,
    ).map(tuple),
    stats=st.builds(Stats, *[COUNTS] * 7),
    ended_ns=COUNTS,
    cut_by_budget=st.booleans(),
)


@given(RESULTS, st.integers(0, 63), st.integers(0, 7))
def test_a_result_survives_its_journey(result: TaskResult, step: int, index: int) -> None:
    assert wire.unpack_result(wire.pack_result(step, index, result)) == (step, index, result)


@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(1, 20)))
def test_frames_come_out_whole_however_they_were_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(wire.frame(wire.TASK_DONE, payload) for payload in payloads)
    decoder = wire.Decoder(longest=100)
    got = []
    for size in [*cuts, len(stream)]:
        got += [payload for _, payload in decoder.feed(stream[:size])]
        stream = stream[size:]
    assert got == payloads
    assert decoder.pending == 0


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_or_waits_for_more(data: bytes) -> None:
    decoder = wire.Decoder(longest=50)
    try:
        for _, payload in decoder.feed(data):
            assert len(payload) < 50
    except wire.ProtocolError:
        return
    assert decoder.pending <= max(len(data), 54)


@given(st.binary(max_size=300))
def test_a_garbled_result_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(data)


@given(RESULTS, st.data())
def test_a_result_that_was_cut_short_is_a_protocol_error(
    result: TaskResult, data: st.DataObject
) -> None:
    whole = wire.pack_result(0, 0, result)
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(whole + b"x")


def test_a_frame_longer_than_allowed_is_refused_before_it_is_read() -> None:
    with pytest.raises(wire.ProtocolError):
        list(wire.Decoder(longest=10).feed(wire.frame(wire.FAILED, b"x" * 10)[:5]))


def test_a_job_is_read_back_with_its_numbers_and_places() -> None:
    first = python("print(1)", stdin=b"in", wall_promised=True, collect=("a", "b"))
    wanted = job(first, piped(task("x"), task("y"), pipes=((0, 1),)), stop_on_failure=True)
    descriptor = wire.write_job(wanted)
    try:
        header = wire.read_job(descriptor)
        assert (header.deadline_ns, header.stop_on_failure) == (wanted.deadline_ns, True)
        assert [len(step.tasks) for step in header.steps] == [1, 2]
        assert header.steps[1].pipes == ((0, 1),)
        got = header.steps[0].tasks[0]
        assert (got.limits, got.wall_promised) == (first.limits, True)
        assert wire.read_range(descriptor, got.stdin) == b"in"
        assert wire.read_range(descriptor, got.collect) == b'["a","b"]'
    finally:
        os.close(descriptor)


def test_a_job_cannot_be_changed_once_it_is_written() -> None:
    descriptor = wire.write_job(job(task("x")))
    try:
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 10_000_000)
    finally:
        os.close(descriptor)


def _sealed(data: bytes, seals: int = wire.SEALS) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _header(**changes: Any) -> bytes:
    task_header = {
        "stdin": [0, 0],
        "collect": [0, 0],
        "section": [0, 2],
        "profile": "standard_v1",
        "wall_promised": False,
        "limits": [1] * 7,
    }
    header = {
        "steps": [{"tasks": [{**task_header, **changes.pop("task", {})}], "pipes": []}],
        "deadline_ns": 1,
        "stop_on_failure": False,
        "workspace_bytes": 1,
        "output_bytes": 1,
        **changes,
    }
    dumped = wire._dump(header)
    return wire.MAGIC + len(dumped).to_bytes(4, "little") + dumped + b"{}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GAOLJOB1",
        b"GAOLJOB2" + bytes(4),
        b"GAOLJOB1" + b"\xff" * 4,
        b"GAOLJOB1" + (9).to_bytes(4, "little") + b"not json!",
        _header(steps=[{"tasks": [], "pipes": []}]),
        _header(steps="x"),
        _header(deadline_ns=-1),
        _header(deadline_ns=1.5),
        _header(workspace_bytes=True),
        _header(output_bytes=1 << 63),
        _header(task={"section": [0, 3]}),
        _header(task={"section": [-1, 1]}),
        _header(task={"stdin": [1 << 61, 1]}),
        _header(task={"limits": [1] * 6}),
        _header(task={"limits": [1] * 8}),
        _header(task={"profile": 3}),
    ],
)
def test_what_is_not_a_job_is_refused(data: bytes) -> None:
    descriptor = _sealed(data)
    try:
        with pytest.raises(wire.ProtocolError):
            wire.read_job(descriptor)
    finally:
        os.close(descriptor)


def test_a_pipe_that_leads_nowhere_is_refused() -> None:
    header = _header()
    data = header.replace(b'"pipes":[]', b'"pipes":[[0,1]]')
    data = data[:8] + (len(data) - 12 - 2).to_bytes(4, "little") + data[12:]
    descriptor = _sealed(data)
    try:
        with pytest.raises(wire.ProtocolError, match="nowhere"):
            wire.read_job(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK])
def test_a_job_that_somebody_could_still_change_is_refused(missing: int) -> None:
    descriptor = _sealed(_header(), wire.SEALS & ~missing)
    try:
        with pytest.raises(wire.ProtocolError, match="not sealed"):
            wire.read_job(descriptor)
    finally:
        os.close(descriptor)
    with open("/dev/null", "rb") as file, pytest.raises(wire.ProtocolError, match="not a memfd"):
        wire.read_job(file.fileno())
