"""The bytes between the processes: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gaoler.sandbox import wire
from gaoler.sandbox.jailer import RequestBroken
from gaoler.sandbox.job import (
    Collected,
    InputFile,
    Job,
    Limits,
    Pipe,
    Stats,
    Step,
    Task,
    TaskResult,
)
from tests.fuzzing import fuzz_frames, fuzz_job, fuzz_message, fuzz_result
from tests.fuzzing.pace import UNTIMED
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
@UNTIMED
def test_a_result_survives_its_journey(result: TaskResult, step: int, index: int) -> None:
    assert wire.unpack_result(wire.pack_result(step, index, result)) == (step, index, result)


@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(1, 20)))
@UNTIMED
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


WHOLE = st.builds(wire.frame, st.sampled_from(wire.KINDS), st.binary(max_size=30))
EMPTY = st.sampled_from(wire.KINDS).map(lambda kind: bytes([0, 0, 0, 0, kind]))  # not even a kind
ODD = (
    st.builds(wire.frame, st.integers(0, 255), st.binary(max_size=60))
    | EMPTY
    | st.binary(max_size=9)
)


@given(
    st.lists(WHOLE | st.lists(WHOLE, max_size=1).map(lambda one: b"".join(one * 2)) | ODD),
    st.lists(st.integers(0, 40)),
    st.integers(1, 50),
)
@example([wire.frame(wire.FAILED, b"x" * 30)], [], 30)
@example([wire.frame(wire.FAILED, b"x" * 30)], [4, 1], 31)
@example([b"\0" * 5], [], 50)
@example([b"\0\0\0\0\1"], [], 50)
@example([b"\xff" * 4], [], 50)
@UNTIMED
def test_a_stream_means_the_same_however_it_was_cut_and_garbage_ends_it(
    parts: list[bytes], cuts: list[int], longest: int
) -> None:
    stream, pieces = b"".join(parts), []
    for size in [*cuts, len(b"".join(parts))]:
        pieces.append(stream[:size])
        stream = stream[size:]
    fuzz_frames.check(pieces, longest)


@given(st.binary(max_size=200))
@UNTIMED
def test_any_bytes_are_an_object_or_a_protocol_error(data: bytes) -> None:
    try:
        assert isinstance(wire.read_json(data), dict)
    except wire.ProtocolError:
        pass


@given(st.binary(max_size=300))
@UNTIMED
def test_a_garbled_result_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(data)


@given(RESULTS, st.data())
@UNTIMED
def test_a_result_that_was_cut_short_is_a_protocol_error(
    result: TaskResult, data: st.DataObject
) -> None:
    whole = wire.pack_result(0, 0, result)
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(whole + b"x")


# Nowhere a count, a flag or a text.
NOTHING = st.sampled_from([None, -1, 1.0, 1e300, [], {}, [1], {"a": 1}, "\ud800"])
NO_COUNT = NOTHING | st.sampled_from([True, "1", (1 << 62) + 1, 1 << 63, 10**400, math.inf])
NO_FLAG = NOTHING | st.sampled_from([0, 1, "true"])
NO_TEXT = NOTHING | st.sampled_from([0, True])


def leaves(value: Any, kind: type) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value of that kind, at all depths."""
    if not isinstance(value, list | dict):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if type(inner) is kind:
            yield value, key
        yield from leaves(inner, kind)


def spoil(value: Any, data: st.DataObject) -> bool:
    """Put something where it must not be; False where there is nothing to be spoiled."""
    kind, odd = data.draw(st.sampled_from([(int, NO_COUNT), (bool, NO_FLAG), (str, NO_TEXT)]))
    places = list(leaves(value, kind))
    if not places:
        return False
    container, key = data.draw(st.sampled_from(places))
    container[key] = data.draw(odd.filter(lambda it: it is not None or key not in NULLABLE))
    return True


NULLABLE = ("reason", "exit_code", "signal", 1)  # 1: the error of a collected file


@given(RESULTS, st.data())
@settings(UNTIMED, max_examples=60)
def test_a_value_that_is_out_of_place_in_a_result_is_a_protocol_error(
    result: TaskResult, data: st.DataObject
) -> None:
    whole = wire.pack_result(1, 2, result)
    end = 4 + int.from_bytes(whole[:4], "little")
    meta = json.loads(whole[4:end])
    if not spoil(meta, data):
        return
    dumped = json.dumps(meta).encode()
    with pytest.raises(wire.ProtocolError):
        wire.unpack_result(len(dumped).to_bytes(4, "little") + dumped + whole[end:])


@given(RESULTS, st.data())
@settings(UNTIMED, max_examples=60)
def test_a_result_with_a_few_bytes_changed_is_one_or_a_protocol_error(
    result: TaskResult, data: st.DataObject
) -> None:
    payload = bytearray(wire.pack_result(0, 0, result))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(payload) - 1))
        payload[place : place + 1] = data.draw(st.binary(min_size=1, max_size=3))
    fuzz_result.check(bytes(payload))


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


TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
TASKS = st.builds(
    Task,
    cmd=TEXTS,
    args=st.lists(TEXTS, max_size=3).map(tuple),
    env=st.dictionaries(TEXTS, TEXTS, max_size=3),
    stdin=st.binary(max_size=20),
    files=st.lists(
        st.builds(InputFile, TEXTS, st.integers(0, 0o777), st.binary(max_size=20)), max_size=3
    ).map(tuple),
    working_dir=TEXTS,
    profile=TEXTS,
    limits=st.builds(Limits, *[COUNTS] * 7),
    wall_promised=st.booleans(),
    collect=st.lists(TEXTS, max_size=3).map(tuple),
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Tasks, each connected to the one that follows it in an order of their own, or not."""
    made = draw(st.lists(TASKS, min_size=1, max_size=3))
    order = draw(st.permutations(range(len(made))))
    pipes = [Pipe(*pair) for pair in pairwise([*order, order[0]]) if pair[0] != pair[1]]
    return Step(
        tuple(made), tuple(draw(st.lists(st.sampled_from(pipes), unique=True))) if pipes else ()
    )


JOBS = st.builds(
    Job,
    request_id=TEXTS,
    steps=st.lists(steps(), min_size=1, max_size=2).map(tuple),
    deadline_ns=COUNTS,
    stop_on_failure=st.booleans(),
    workspace_bytes=COUNTS,
    output_bytes=COUNTS,
    memory_bytes=COUNTS,
)


@given(JOBS)
@settings(UNTIMED, max_examples=40)
def test_any_job_that_is_written_is_read_back_whole(wanted: Job) -> None:
    descriptor = wire.write_job(wanted)
    try:
        header = wire.read_job(descriptor)
        fuzz_job.check_header(header, descriptor, wire.sealed_size(descriptor))
        got = Job(
            request_id=wanted.request_id,  # it travels beside the job
            steps=tuple(
                Step(
                    tuple(_read_task(descriptor, task) for task in step.tasks),
                    tuple(Pipe(*pipe) for pipe in step.pipes),
                )
                for step in header.steps
            ),
            deadline_ns=header.deadline_ns,
            stop_on_failure=header.stop_on_failure,
            workspace_bytes=header.workspace_bytes,
            output_bytes=header.output_bytes,
            memory_bytes=wanted.memory_bytes,
        )
    finally:
        os.close(descriptor)
    assert got == wanted


def _read_task(descriptor: int, header: wire.TaskHeader) -> Task:
    section = json.loads(wire.read_range(descriptor, header.section))
    collect = wire.read_range(descriptor, header.collect)
    base = wire.file_base(descriptor)
    return Task(
        cmd=section["cmd"],
        args=tuple(section["args"]),
        env=section["env"],
        stdin=wire.read_range(descriptor, header.stdin),
        files=tuple(
            InputFile(path, mode, wire.read_range(descriptor, wire.Range(base + offset, length)))
            for path, mode, offset, length in section["files"]
        ),
        working_dir=section["working_dir"],
        profile=header.profile,
        limits=header.limits,
        wall_promised=header.wall_promised,
        collect=tuple(json.loads(collect)) if collect else (),
    )


@given(JOBS, st.data())
@settings(UNTIMED, max_examples=40)
def test_a_value_that_is_out_of_place_in_a_header_is_a_protocol_error(
    wanted: Job, data: st.DataObject
) -> None:
    header, behind = _taken_apart(wanted)
    spoil(header, data)
    assert not fuzz_job.check(fuzz_job.content(json.dumps(header).encode(), behind))


@given(JOBS, st.data())
@settings(UNTIMED, max_examples=40)
def test_a_part_that_is_missing_from_a_header_is_a_protocol_error(
    wanted: Job, data: st.DataObject
) -> None:
    header, behind = _taken_apart(wanted)
    places = [place for kind in (int, bool, list) for place in leaves(header, kind)]
    container, key = data.draw(
        st.sampled_from([(c, k) for c, k in places if isinstance(c, dict)]), label="what"
    )
    del container[key]
    assert not fuzz_job.check(fuzz_job.content(json.dumps(header).encode(), behind))


@given(JOBS, st.data())
@settings(UNTIMED, max_examples=40)
def test_a_job_with_a_few_bytes_changed_is_one_or_a_protocol_error(
    wanted: Job, data: st.DataObject
) -> None:
    header, behind = _taken_apart(wanted)
    content = bytearray(fuzz_job.content(json.dumps(header).encode(), behind))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    fuzz_job.check(bytes(content))


@given(st.binary(max_size=100))
@UNTIMED
def test_any_bytes_are_a_protocol_error_to_root(data: bytes) -> None:
    assert not fuzz_job.check(data)
    assert not fuzz_job.check(fuzz_job.content(data, data))


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
@UNTIMED
def test_a_range_is_taken_exactly_where_it_lies_within_the_job(
    offset: int, length: int, size: int
) -> None:
    data = _header(task={"stdin": [offset, length], "section": [0, 0]}).removesuffix(b"{}")
    assert fuzz_job.check(data + bytes(size)) == (offset + length <= size)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4))
@UNTIMED
def test_pipes_are_taken_exactly_where_each_end_is_a_task_of_its_own(
    pipes: list[tuple[int, int]],
) -> None:
    one = json.loads(_header()[12:-2])["steps"][0]["tasks"][0]
    ends = [{source for source, _ in pipes}, {target for _, target in pipes}]
    fine = all(len(side) == len(pipes) and side <= {0, 1, 2} for side in ends) and not any(
        source == target for source, target in pipes
    )
    assert fuzz_job.check(_header(steps=[{"tasks": [one] * 3, "pipes": pipes}])) == fine


def _taken_apart(wanted: Job) -> tuple[Any, bytes]:
    """The header's value, and what follows the header."""
    descriptor = wire.write_job(wanted)
    try:
        base = wire.file_base(descriptor)
        whole = os.pread(descriptor, wire.sealed_size(descriptor), 0)
    finally:
        os.close(descriptor)
    return json.loads(whole[12:base]), whole[base:]


def test_a_workspace_without_a_limit_is_refused_by_the_jailer() -> None:
    """Pins: to tmpfs a size of 0 is no limit, and the spec's maximum was compared alone."""
    data = _header(workspace_bytes=0)
    with fuzz_job.sealed(data) as descriptor, pytest.raises(RequestBroken):
        fuzz_job.jailer(descriptor)._read_header()


@given(st.binary(max_size=60))
@example(b"1")
@example(b"[]")
@example(b'{"op":[]}')
@example(b"[" * 4000)
@UNTIMED
def test_any_datagram_is_refused_by_the_warden(data: bytes) -> None:
    assert not fuzz_message.check(data)


RUN = {"op": "run", "id": "x", "memory_bytes": 1, "pids": 1, "hard_ns": 1}


@given(
    st.sampled_from(["memory_bytes", "pids", "hard_ns"]).flatmap(
        lambda name: st.tuples(st.just(name), NO_COUNT | st.just(0))
    )
    | st.tuples(st.just("id"), NO_TEXT.filter(lambda it: it != "\ud800") | st.just("x" * 201))
)
@UNTIMED
def test_a_run_with_one_value_out_of_place_is_refused_by_the_warden(odd: tuple[str, Any]) -> None:
    assert fuzz_message.check(json.dumps(RUN).encode())
    assert not fuzz_message.check(json.dumps(RUN | dict([odd])).encode())


MESSAGES = st.fixed_dictionaries(
    {"op": st.sampled_from(["run", "run", "run", "ping", "stop", None])},
    optional={
        "id": TEXTS | st.just("x" * 201) | NO_TEXT,
        **{
            name: st.sampled_from([0, 1, 1 << 20, 1 << 45]) | NO_COUNT
            for name in ("memory_bytes", "pids", "hard_ns", "n")
        },
    },
)


@given(MESSAGES)
@example({"op": "ping", "n": 10**400})
@UNTIMED
def test_the_warden_takes_a_run_within_its_maxima_and_refuses_every_other(
    message: dict[str, Any],
) -> None:
    fuzz_message.check(json.dumps(message).encode())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.binary(max_size=13))))
@UNTIMED
def test_descriptors_are_read_from_whole_numbers_alone(
    ancillary: list[tuple[int, int, bytes]],
) -> None:
    rights = [raw for level, kind, raw in ancillary if (level, kind) == (1, 1)]
    assert (socket.SOL_SOCKET, socket.SCM_RIGHTS) == (1, 1)
    assert len(wire.descriptors(ancillary)) == sum(len(raw) // 4 for raw in rights)


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


def test_a_header_that_claims_to_be_longer_than_the_job_is_refused() -> None:
    whole = _header(steps=[]).removesuffix(b"{}")
    length = len(whole) - 12
    assert fuzz_job.check(whole)
    assert not fuzz_job.check(whole[:8] + (length + 1).to_bytes(4, "little") + whole[12:])


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
