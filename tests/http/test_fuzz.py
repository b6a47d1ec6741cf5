"""Whatever a client sends, it gets a checked request or a refusal: nothing else ever happens."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gaoler.http import paths
from gaoler.http.admit import NoFiles, admit
from gaoler.http.content import Inline, content
from gaoler.http.decode import decode
from gaoler.http.errors import Problem
from gaoler.http.schemas import (
    IDENTITY_CHARACTERS,
    MOST_ARGUMENTS,
    MOST_COLLECTED,
    MOST_UNKNOWN_FIELDS,
    MOST_VARIABLES,
    Bounds,
    read_execute,
)
from gaoler.sandbox import wire
from gaoler.sandbox.job import Limits
from tests.fuzzing import fuzz_body, fuzz_content, fuzz_request
from tests.fuzzing.fuzz_request import check, check_named, check_refusal, check_value
from tests.fuzzing.pace import UNTIMED

BOUNDS = Bounds(64, 8, 100)

# As msgspec writes the place of what it refuses.
PLACE_LIKE = ["x` - at `$.y", "x` - at `$.\n", "` - at `$.limits", "`", "$"]
TEXT = (
    st.text(max_size=8)
    | st.sampled_from(["a", "./a", "a/b", "..", "/a", "a\0b", "A=B", "", "0755", "eA==", "0" * 64])
    | st.sampled_from(["stdout", "stdin", *PLACE_LIKE])
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
LIMIT_NAMES = Limits.__slots__
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


@given(REQUEST)
@settings(UNTIMED, max_examples=250)
def test_any_request_is_admitted_or_refused(request: Any) -> None:
    check(json.dumps(request).encode())


@given(ANYTHING)
@UNTIMED
def test_any_value_is_admitted_or_refused(value: Any) -> None:
    check(json.dumps(value).encode())


@given(st.binary(max_size=200))
@UNTIMED
def test_any_bytes_are_refused(body: bytes) -> None:
    check(body)


@given(ANYTHING, st.binary(max_size=4), st.integers(0, 40))
@UNTIMED
def test_any_body_is_json_or_refused(value: Any, junk: bytes, at: int) -> None:
    whole = json.dumps(value).encode()
    fuzz_body.check(whole[:at] + junk + whole[at:])
    fuzz_body.fuzz(whole)  # where few values are too many


@given(REQUEST, st.data())
@settings(UNTIMED, max_examples=100)
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


FEW_VALUES = st.sampled_from([0, [], {}, "", [0], {"": 0}, [[]], ',[{"', {"a": []}])


@given(st.lists(FEW_VALUES, min_size=8, max_size=24), st.sampled_from([",", " ,\n"]))
@UNTIMED
def test_values_are_counted_exactly(values: list[Any], comma: str) -> None:
    fuzz_body.fuzz(json.dumps(values, separators=(comma, ":")).encode())


PIPES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)


@given(PIPES)
@example([(0, 2), (1, 2)])
@UNTIMED
def test_pipes_are_taken_exactly_where_each_end_is_a_task_of_its_own(
    pipes: list[tuple[int, int]],
) -> None:
    ends = [{source for source, _ in pipes}, {target for _, target in pipes}]
    fine = all(len(side) == len(pipes) and side <= {0, 1, 2} for side in ends)
    fine = fine and all(source != target for source, target in pipes)
    written = [{"from": [source, "stdout"], "to": [target, "stdin"]} for source, target in pipes]
    step = {"tasks": [{"cmd": "a"}] * 3, "pipes": written}
    assert check_value({"steps": [step]}, BOUNDS) == fine


# --- limits -------------------------------------------------------------------------------


def task(**fields: Any) -> dict[str, Any]:
    return {"steps": [{"cmd": "a", **fields}]}


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


# What is counted, the most of it, and a request that has so many.
COUNTED: dict[str, tuple[int, Callable[[int], Any]]] = {
    "steps": (BOUNDS.steps, lambda count: {"steps": [{"cmd": "a"}] * count}),
    "parallel tasks": (4, lambda count: {"steps": [[{"cmd": "a"}] * count]}),
    "files": (BOUNDS.files, lambda count: task(files=dict.fromkeys(names(count), ""))),
    "files of two steps": (
        BOUNDS.files,
        lambda count: {
            "steps": [
                {"cmd": "a", "files": {"a": ""}},
                {"cmd": "a", "files": dict.fromkeys(names(count - 1), "")},
            ]
        },
    ),
    "arguments": (MOST_ARGUMENTS, lambda count: task(args=["a"] * count)),
    "variables": (MOST_VARIABLES, lambda count: task(env=dict.fromkeys(names(count), ""))),
    "collected": (MOST_COLLECTED, lambda count: task(collect=names(count))),
    "unknown fields": (MOST_UNKNOWN_FIELDS, lambda n: task() | dict.fromkeys(names(n), 0)),
    "an identity": (IDENTITY_CHARACTERS, lambda count: task() | {"subject": "é" * count}),
    "an argument": (131_071, lambda count: task(args=["é" * (count // 2) + "a" * (count % 2)])),
    "a variable": (131_071, lambda count: task(env={"A": "x" * (count - 2)})),
    "a command": (131_071, lambda count: {"steps": [{"cmd": "x" * count}]}),
    "a name": (255, lambda count: task(files={"a/" + "x" * count: ""})),
    "a path": (4095, lambda count: task(working_dir="x" * 200 + "/" * (count - 200))),
}


@pytest.mark.parametrize(("most", "make"), COUNTED.values(), ids=COUNTED.keys())
@given(more=st.integers(-2, 3))
@settings(UNTIMED, max_examples=8)
def test_so_many_are_taken_and_not_one_more(
    most: int, make: Callable[[int], Any], more: int
) -> None:
    assert check_value(make(most + more), BOUNDS) == (more <= 0)


# docs/api.md, for an interactive request.
MOST = fuzz_request.SETTINGS
RANGES = {
    "wall_ms": (1, MOST.runner_timeout_ms - MOST.budget_grace_ms),
    "cpu_ms": (1, MOST.runner_timeout_ms),
    "memory_bytes": (16 << 20, MOST.memory_limit_max_bytes),
    "pids": (1, MOST.pids_limit_max),
    "output_bytes": (0, MOST.request_output_limit_bytes),
    "file_bytes": (0, MOST.workspace_bytes),
    "stack_bytes": (1, MOST.memory_limit_bytes),
}


@pytest.mark.parametrize(("name", "least", "most"), [(k, *v) for k, v in RANGES.items()])
@given(data=st.data())
@settings(UNTIMED, max_examples=30)
def test_a_limit_is_taken_exactly_within_its_range(
    name: str, least: int, most: int, data: st.DataObject
) -> None:
    near = [least - 1, least, least + 1, most - 1, most, most + 1]
    value = data.draw(st.sampled_from(near) | st.integers(-(2**70), 2**70))
    assert check_value(task(limits={name: value}), BOUNDS) == (least <= value <= most)


TEXTS: dict[str, Callable[[str], Any]] = {
    "cmd": lambda text: {"steps": [{"cmd": text}]},
    "args": lambda text: task(args=["a", text]),
    "env": lambda text: task(env={"A": text}),
    "env's name": lambda text: task(env={text: ""}),
    "working_dir": lambda text: task(working_dir=text),
    "files": lambda text: task(files={text: ""}),
    "collect": lambda text: task(collect=[{"path": text}]),
    "profile": lambda text: task(profile=text),
    "subject": lambda text: task() | {"subject": text},
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS.keys())
@given(st.text(max_size=3), st.text(max_size=3))
@settings(UNTIMED, max_examples=10)
def test_no_text_but_a_content_may_hold_a_nul(
    make: Callable[[str], Any], before: str, after: str
) -> None:
    assert not check_value(make(f"{before}\0{after}"), BOUNDS)
    assert check_value(task(stdin=f"{before}\0{after}"), BOUNDS)


LONG = ["x" * 100_000, "é\n" * 50_000, "😀" * 30_000, "a/" * 50_000]
PLACES: dict[str, Callable[[str], Any]] = {
    "a field": lambda text: task() | {"priority": text},
    "a name": lambda text: task(**{text: 1}),
    "a name inside": lambda text: task(limits={text: 1}),
    "a content's name": lambda text: task(stdin={text: 1}),
    "a file's name": lambda text: task(files={text: 1, text + "b": 2}),
    "two files' names": lambda text: task(files={text[:200]: "", "./" + text[:200]: ""}),
    "a variable's name": lambda text: task(env={text: 1}),
    "a role": lambda text: task(role=text),
    "a profile": lambda text: task(profile=text),
    "a path": lambda text: task(working_dir=text),
    "a base64": lambda text: task(stdin={"base64": f"!{text}"}),
    "a mode": lambda text: task(files={"a": {"content": "", "mode": text}}),
    "a file id": lambda text: task(stdin={"file_id": text}),
    "a pipe": lambda text: {"steps": [{"tasks": [{"cmd": "a"}], "pipes": [{text: 1}]}]},
    "an end": lambda text: {
        "steps": [{"tasks": [{"cmd": "a"}], "pipes": [{"from": [0, text], "to": [0, "stdin"]}]}]
    },
    "all": lambda text: text,
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES.keys())
def test_a_refusal_stays_short_however_long_the_text_that_it_is_about(
    make: Callable[[str], Any],
) -> None:
    for text in LONG:
        assert not check_value(make(text), BOUNDS)


@given(REQUEST)
@settings(UNTIMED, max_examples=40)
def test_what_becomes_of_a_body_is_not_much_larger_than_the_body(request: Any) -> None:
    body = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        read = read_execute(decode(body), BOUNDS)
        job = admit(read, "r", "", fuzz_request.SETTINGS, NoFiles()).job
    except Problem:
        return
    descriptor = wire.write_job(job)
    try:
        # For each task its limits and the fixed environment.
        tasks = sum(len(step.tasks) for step in job.steps)
        assert wire.sealed_size(descriptor) <= 4 * len(body) + 700 * tasks + 300
    finally:
        os.close(descriptor)


# --- names of fields ----------------------------------------------------------------------


@given(st.sampled_from(["cmd", "steps", "x", "limits"]), TEXT, ANYTHING)
@example("x", "` - at `$.limits", {})
@example("x` - at `$.limits", "", {})
@UNTIMED
def test_an_unknown_field_is_named_as_the_client_wrote_it(start: str, end: str, value: Any) -> None:
    """Pins: a name that looks like msgspec's own place was taken for it."""
    name = start + end
    assume(name not in ("cmd", "limits"))
    given_task = {"cmd": "a", "limits": {}, name: value}
    with pytest.raises(Problem) as refused:
        read_execute({"steps": [given_task]}, BOUNDS)
    check_refusal(refused.value)
    check_named(refused.value, {"steps": [given_task]})
    assert refused.value.detail.endswith(": unknown field")


# --- contents -----------------------------------------------------------------------------


@given(CONTENT | ANYTHING)
@settings(UNTIMED, max_examples=200)
def test_a_content_means_what_the_client_wrote_or_names_the_field_at_fault(value: Any) -> None:
    fuzz_content.check(value)


SIGNS = st.text("AZaz09+/=-_ \n", max_size=12) | st.text("A=", max_size=9)


@given(SIGNS | st.binary(max_size=12).map(lambda data: base64.b64encode(data).decode()))
@example("A===")
@example("AAAA====")
@example("AA==AA==")
@example("=AAA")
@example("AA==\n")
@example("\uff21AAA")
@settings(UNTIMED, max_examples=300)
def test_a_base64_is_taken_exactly_where_it_is_padded_and_plain(text: str) -> None:
    fuzz_content.check({"base64": text})


@given(st.binary(max_size=200))
@UNTIMED
def test_bytes_come_out_of_a_base64_as_they_went_in(data: bytes) -> None:
    assert content({"base64": base64.b64encode(data).decode()}, "x") == Inline(data)


@given(st.text("01789 o+-٣", max_size=5) | st.integers(0, 0o7777).map("{:04o}".format))
@UNTIMED
def test_a_mode_is_taken_exactly_where_it_is_octal_and_has_no_special_bit(mode: str) -> None:
    fuzz_content.check({"content": "", "mode": mode})


# --- files that meet ----------------------------------------------------------------------


@given(st.lists(st.lists(st.sampled_from(["a", "b", "a-", "a\x01"]), min_size=1, max_size=3)))
@UNTIMED
def test_files_collide_exactly_where_one_is_the_other_or_lies_below_it(
    files: list[list[str]],
) -> None:
    others = [files[:i] + files[i + 1 :] for i in range(len(files))]
    wanted = any(
        one == other[: len(one)] for one, rest in zip(files, others, strict=True) for other in rest
    )
    spelled = {str(number): "/".join(file) for number, file in enumerate(files)}
    with pytest.raises(Problem) if wanted else contextlib.nullcontext():
        paths.check_collisions(spelled)


def test_deep_values_in_every_place_are_refused_without_a_stack_overflow() -> None:
    deep = "[" * 1000 + "]" * 1000
    names = ["args", "env", "stdin", "files", "limits", "collect", "cmd", "working_dir", "x"]
    for name in names:
        check(f'{{"steps": [{{"cmd": "a", "{name}": {deep}}}]}}'.encode())
        check(f'{{"steps": [{{"cmd": "a", "{name}": {{"a": {deep}}}}}]}}'.encode())
    check(f'{{"steps": {deep}}}'.encode())
    check(f'{{"steps": [{{"cmd": "a"}}], "x": {deep}}}'.encode())
