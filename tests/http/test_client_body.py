"""What a client's request looks like on the wire, and that the server reads it as it was meant."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
import ujson

from gaoler.http import content
from gaoler.http.client import Collect, File, Limits, Pipe, Request, Step, Stored, Task, Tasks
from gaoler.http.client_body import body
from gaoler.http.schemas import Bounds, ExecuteGiven, read_execute

BOUNDS = Bounds(steps=64, parallel_tasks=8, files=1_000)
ID = "ab" * 32


def sent(request: Request) -> Any:
    return json.loads(body(request, 1_000))


def read(request: Request) -> ExecuteGiven:
    """As the server reads it."""
    return read_execute(ujson.loads(body(request, 1_000)), BOUNDS)


def test_what_is_left_out_is_not_sent() -> None:
    assert sent(Request([Task("true")])) == {"steps": [{"cmd": "true"}], "budget_ms": 1_000}


def test_every_field_arrives_as_it_was_meant() -> None:
    task = Task(
        "python3",
        ["-c", "é"],
        env={"A": "b"},
        stdin=b"\xff",
        files={"text": "é", "bytes": File(b"\0", 0o755), "stored": Stored(ID)},
        working_dir="a",
        profile="native_v1",
        role="build",
        limits=Limits(
            wall_ms=1,
            cpu_ms=2,
            memory_bytes=3,
            pids=4,
            output_bytes=5,
            file_bytes=0,
            stack_bytes=7,
        ),
        collect=["out", Collect("kept", store=True)],
        cacheable=True,
    )
    request = Request(
        [task],
        priority="interactive",
        evaluation_id="e",
        attempt_id="a",
        subject="s",
        purpose="try",
        stop_on_failure=True,
        wait=False,
    )
    given = read(request)
    assert given.ignored_fields == ()
    assert (given.evaluation_id, given.attempt_id, given.subject) == ("e", "a", "s")
    assert (given.purpose, given.stop_on_failure, given.wait) == ("try", True, False)
    assert given.budget_ms == 1_000
    (got,) = given.steps[0].tasks
    assert (got.cmd, got.args, got.env) == ("python3", ("-c", "é"), {"A": "b"})
    assert got.stdin == content.Inline(b"\xff")
    files = {each.path: (each.content, each.mode) for each in got.files}
    assert files["text"] == (content.Inline("é".encode()), 0o644)
    assert files["bytes"] == (content.Inline(b"\0"), 0o755)
    assert isinstance(files["stored"][0], content.Stored)
    assert files["stored"][0].file_id == ID
    assert (got.working_dir, got.profile, got.role) == ("a", "native_v1", "build")
    limits = [getattr(got.limits, name) for name in got.limits.__struct_fields__]
    assert limits == [1, 2, 3, 4, 5, 0, 7]
    assert [(each.path, each.store) for each in got.collect] == [("out", False), ("kept", True)]
    assert got.cacheable


def test_a_client_can_say_all_that_the_server_reads() -> None:
    """Pins: a field that one side gets and the other does not know."""
    from gaoler.http import schemas

    for ours, theirs in (
        (Request, schemas._Body),
        (Task, schemas._TaskBody),
        (Limits, schemas.LimitsGiven),
        (Collect, schemas._CollectBody),
        (Tasks, schemas._StepBody),
    ):
        assert ours.__struct_fields__ == theirs.__struct_fields__


@pytest.mark.parametrize(("action", "priority"), [("project", "grading"), ("run", "grading")])
def test_an_action_and_a_priority_arrive(action: Any, priority: Any) -> None:
    given = read(Request([Task("true")], action=action, priority=priority))
    assert (given.action, given.priority) == (action, priority)


def test_a_step_is_written_as_it_was_given() -> None:
    true = Task("true")
    piped = Tasks([true, true], [Pipe(0, 1), Pipe(1, 0)])
    given = read(Request([true, [true], (true, true), piped]))
    assert [(len(step.tasks), step.single) for step in given.steps] == [
        (1, True),
        (1, False),
        (2, False),
        (2, False),
    ]
    assert [(pipe.source, pipe.target) for pipe in given.steps[3].pipes] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("stdin", ["", b""])
def test_an_empty_stdin_is_not_sent(stdin: str | bytes) -> None:
    assert sent(Request([Task("true", stdin=stdin)]))["steps"] == [{"cmd": "true"}]


def test_an_empty_file_is_sent() -> None:
    (step,) = sent(Request([Task("true", files={"a": "", "b": b""})]))["steps"]
    assert step["files"] == {"a": {"content": ""}, "b": {"base64": ""}}


def test_a_budget_that_cannot_be_is_left_for_the_service_to_refuse() -> None:
    assert json.loads(body(Request([Task("true")]), -5))["budget_ms"] == 1


@pytest.mark.parametrize(
    ("steps", "kind", "why"),
    [
        ([], ValueError, "steps: there are none"),
        ([[]], ValueError, r"steps\[0\]: there are no tasks"),
        ([Task("true"), Tasks([])], ValueError, r"steps\[1\]: there are no tasks"),
        (Task("true"), TypeError, "steps: expected a list of steps"),
    ],
)
def test_steps_that_are_none_are_refused_before_they_are_sent(
    steps: Any, kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        Request(steps)


WRONG: Any = "5"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"steps": [Task("a", limits=Limits(wall_ms=WRONG))]},
            "steps[0].limits.wall_ms: expected an integer or None, not '5'",
        ),
        (
            {"steps": [[Task("a"), Task("a", limits=Limits(pids=True))]]},
            "steps[0][1].limits.pids: expected an integer or None, not True",
        ),
        (
            {"steps": [Tasks([Task("a", ["b", 7])])]},  # type: ignore[list-item]
            "steps[0].tasks[0].args[1]: expected a string, not 7",
        ),
        (
            {"steps": [Task("a", files={"b": 1.5})]},  # type: ignore[dict-item]
            "steps[0].files.b: expected a string or bytes or a Stored or a File, not 1.5",
        ),
        (
            {"steps": [Task("a", files={"b": File("", WRONG)})]},
            "steps[0].files.b.mode: expected an integer, not '5'",
        ),
        (
            {"steps": [Task("a", env={1: "b"})]},  # type: ignore[dict-item]
            "steps[0].env: expected a string, not 1",
        ),
        ({"steps": [Task("a", env=WRONG)]}, "steps[0].env: expected a dict, not '5'"),
        ({"steps": ["ls"]}, "steps[0]: expected a Task or a list or a Tasks, not 'ls'"),
        ({"steps": 5}, "steps: expected a list, not 5"),
        ({"steps": [Task("a")], "budget_ms": WRONG}, "budget_ms: expected an integer or None"),
        ({"steps": [Task("a")], "wait": 1}, "wait: expected a bool, not 1"),
        (
            {"steps": [Task("a")], "subject": Task("a")},
            "subject: expected a string or None, not 'T",
        ),
    ],
)
def test_a_value_of_another_type_is_named_as_the_api_names_its_field(
    fields: dict[str, Any], told: str
) -> None:
    """Pins: `can only concatenate str`, from where the budget is added up."""
    with pytest.raises(TypeError) as caught:
        Request(**fields)
    assert str(caught.value).startswith(told)


def test_what_is_like_a_list_a_dict_or_bytes_will_do() -> None:
    files = MappingProxyType({"a": bytearray(b"\xff")})
    request = Request((Task("a", ("b",), files=files, stdin=memoryview(b"c")),))  # type: ignore[arg-type]
    (task,) = sent(request)["steps"]
    assert (task["args"], task["files"]["a"]) == (["b"], {"base64": "/w=="})


def test_a_string_is_no_list_of_strings() -> None:
    with pytest.raises(TypeError, match="args: expected a list"):
        Task("python3", "-c")
    with pytest.raises(TypeError, match="collect: expected a list"):
        Task("python3", collect="out")


def test_a_budget_below_one_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="budget_ms: 0"):
        Request([Task("true")], budget_ms=0)


@pytest.mark.parametrize(
    ("step", "where"),
    [
        (Task("true", ["a", "\udcff"]), "steps[0].args[1]"),
        ([Task("true"), Task("\udcff")], "steps[0][1].cmd"),
        (Task("true", files={"a": "\udcff"}), "steps[0].files.a.content"),
        (Task("true", env={"\udcff": "a"}), "steps[0].env"),
    ],
)
def test_text_that_is_none_is_named_before_it_is_sent(step: Step, where: str) -> None:
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        body(Request([step]), 1_000)
    assert str(caught.value).startswith(f"{where}: ")
