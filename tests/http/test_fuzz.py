"""Whatever a client sends, it gets a checked request or a refusal: nothing else ever happens."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gaoler.config.settings import Settings
from gaoler.http import errors
from gaoler.http.admit import NoFiles, admit
from gaoler.http.decode import decode
from gaoler.http.errors import Problem
from gaoler.http.schemas import Bounds, read_execute

SETTINGS = Settings(max_concurrency=4, tasks_memory_bytes=2**34)
BOUNDS = Bounds(64, 8, 100)
STATUSES = {400, 404, 422}

TEXT = st.text(max_size=8) | st.sampled_from(
    ["a", "./a", "a/b", "..", "/a", "a\0b", "A=B", "", "0755", "eA==", "0" * 64, "stdout", "stdin"]
)
NUMBER = (
    st.integers(-2, 3)
    | st.sampled_from([16 * 2**20, 10_000, 2**40, 10**30, -(10**30)])
    | st.floats()
    | st.booleans()
)
ANYTHING = st.recursive(
    st.none() | TEXT | NUMBER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def maybe(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what belongs there."""
    return st.one_of(good, good, good, ANYTHING)


def fields(**given: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {name: maybe(strategy) for name, strategy in given.items()}
    return st.fixed_dictionaries({}, optional=optional)


CONTENT = TEXT | fields(content=TEXT, base64=TEXT, file_id=TEXT, mode=TEXT)
LIMIT_NAMES = ("wall_ms", "cpu_ms", "memory_bytes", "pids", "output_bytes", "file_bytes")
LIMITS = fields(**dict.fromkeys(LIMIT_NAMES, NUMBER))
TASK = st.builds(
    lambda cmd, rest: {"cmd": cmd, **rest},
    maybe(st.just("true")),
    fields(
        args=st.lists(TEXT, max_size=3),
        env=st.dictionaries(TEXT, TEXT, max_size=3),
        stdin=CONTENT,
        files=st.dictionaries(TEXT, CONTENT, max_size=3),
        working_dir=TEXT,
        profile=st.sampled_from(["standard_v1", "x"]),
        role=st.sampled_from(["build", "case"]),
        limits=LIMITS,
        collect=st.lists(TEXT | fields(path=TEXT, store=st.booleans()), max_size=2),
        cacheable=st.booleans(),
    ),
)
END = st.tuples(st.integers(-1, 3), st.sampled_from(["stdout", "stdin"])).map(list)
STEP = (
    TASK
    | st.lists(TASK, max_size=3)
    | fields(
        tasks=st.lists(TASK, max_size=3),
        pipes=st.lists(st.fixed_dictionaries({"from": END, "to": END}), max_size=2),
    )
)
REQUEST = fields(
    priority=st.sampled_from(["interactive", "grading"]),
    action=st.sampled_from(["run", "project"]),
    budget_ms=NUMBER,
    evaluation_id=TEXT,
    attempt_id=TEXT,
    subject=TEXT,
    purpose=st.sampled_from(["run", "try"]),
    stop_on_failure=st.booleans(),
    wait=st.booleans(),
).flatmap(
    lambda rest: maybe(st.lists(STEP, min_size=1, max_size=3)).map(
        lambda steps: {"steps": steps, **rest}
    )
)


def check(body: bytes) -> None:
    """Decode, validate and admit; a refusal must be one that can be written."""
    try:
        request = read_execute(decode(body), BOUNDS)
        admitted = admit(request, "r", "", SETTINGS, NoFiles())
    except Problem as problem:
        check_refusal(problem)
        return
    errors.dump(request.ignored_fields)
    assert 1 <= admitted.budget_ms <= 300_000
    assert admitted.job.memory_bytes <= SETTINGS.tasks_memory_bytes
    for step in admitted.job.steps:
        for task in step.tasks:
            assert not any("\0" in text for text in (task.cmd, *task.args, *task.env))
            assert not any(each.path.startswith("/") for each in task.files)
            assert all(type(value) is int for value in _limits(task))


def check_refusal(problem: Problem) -> None:
    assert problem.status in STATUSES
    assert problem.detail.isprintable()
    assert json.loads(errors.render(problem, "r"))["status"] == problem.status


def _limits(task: Any) -> list[object]:
    return [getattr(task.limits, name) for name in task.limits.__slots__]


@given(REQUEST)
@settings(max_examples=400)
def test_any_request_is_admitted_or_refused(request: Any) -> None:
    check(json.dumps(request).encode())


@given(ANYTHING)
def test_any_value_is_admitted_or_refused(value: Any) -> None:
    check(json.dumps(value).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(body: bytes) -> None:
    check(body)


@given(REQUEST, st.data())
@settings(max_examples=200)
def test_a_body_with_a_few_bytes_changed_is_admitted_or_refused(
    request: Any, data: st.DataObject
) -> None:
    body = bytearray(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + 1] = data.draw(st.binary(max_size=3))
        if not body:
            break
    check(bytes(body))


def test_deep_values_in_every_place_are_refused_without_a_stack_overflow() -> None:
    deep = "[" * 1000 + "]" * 1000
    names = ["args", "env", "stdin", "files", "limits", "collect", "cmd", "working_dir", "x"]
    for name in names:
        check(f'{{"steps": [{{"cmd": "a", "{name}": {deep}}}]}}'.encode())
        check(f'{{"steps": [{{"cmd": "a", "{name}": {{"a": {deep}}}}}]}}'.encode())
    check(f'{{"steps": {deep}}}'.encode())
    check(f'{{"steps": [{{"cmd": "a"}}], "x": {deep}}}'.encode())
