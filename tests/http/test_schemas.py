"""The shape of a request: what is taken, what is refused, and the field that a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.http.content import Inline, Stored
from gaoler.http.errors import Problem
from gaoler.http.schemas import Bounds, ExecuteGiven, PipeGiven, read_execute

BOUNDS = Bounds(steps=64, parallel_tasks=8, files=100)
SHA = "0" * 64


def read(value: object) -> ExecuteGiven:
    return read_execute(value, BOUNDS)


def refused(value: object) -> Problem:
    with pytest.raises(Problem) as caught:
        read(value)
    return caught.value


def task(**fields: Any) -> dict[str, Any]:
    return {"steps": [{"cmd": "/bin/true", **fields}]}


def request(**fields: Any) -> dict[str, Any]:
    return {**task(), **fields}


def pipes(*given: object, **second: Any) -> dict[str, Any]:
    tasks = [{"cmd": "a"}, {"cmd": "b", **second}, {"cmd": "c"}]
    return {"steps": [{"tasks": tasks, "pipes": list(given)}]}


def pipe(source: int, target: int) -> dict[str, Any]:
    return {"from": [source, "stdout"], "to": [target, "stdin"]}


WRONG: list[tuple[object, str]] = [
    # the whole
    ([], "expected `object`"),
    (None, "expected `object`"),
    ("steps", "expected `object`"),
    ({}, "steps: required"),
    ({"steps": []}, "steps:"),
    ({"steps": None}, "steps:"),
    ({"steps": {"cmd": "/bin/true"}}, "steps:"),
    (request(priority="urgent"), "priority:"),
    (request(priority=None), "priority:"),
    (request(action="build"), "action:"),
    (request(purpose="play"), "purpose:"),
    (request(stop_on_failure="false"), "stop_on_failure:"),
    (request(stop_on_failure=0), "stop_on_failure:"),
    (request(wait=1), "wait:"),
    (request(budget_ms=0), "budget_ms:"),
    (request(budget_ms=-1), "budget_ms:"),
    (request(budget_ms=1000.0), "budget_ms:"),
    (request(budget_ms=True), "budget_ms:"),
    (request(budget_ms="1000"), "budget_ms:"),
    (request(budget_ms=None), "budget_ms:"),
    (request(attempt_id=""), "attempt_id:"),
    (request(attempt_id=7), "attempt_id:"),
    (request(evaluation_id="x" * 129), "evaluation_id:"),
    (request(subject="a\nb"), "subject:"),
    (request(subject="a\x7fb"), "subject:"),
    (request(subject="a\x85b"), "subject:"),
    (request(purpose="try"), "purpose:"),
    (request(purpose="try", subject="s", priority="grading"), "purpose:"),
    (request(purpose="try", subject="s", action="project"), "purpose:"),
    # steps
    ({"steps": [[]]}, "steps[0]:"),
    ({"steps": [None]}, "steps[0]:"),
    ({"steps": [7]}, "steps[0]:"),
    ({"steps": [{}]}, "steps[0].cmd: required"),
    ({"steps": [[{"cmd": "a"}, []]]}, "steps[0][1]:"),
    ({"steps": [{"cmd": "a"}, [{"cmd": "a"}, {"args": []}]]}, "steps[1][1].cmd: required"),
    ({"steps": [{"tasks": []}]}, "steps[0].tasks:"),
    ({"steps": [{"tasks": {}}]}, "steps[0].tasks:"),
    ({"steps": [{"pipes": []}]}, "steps[0].tasks: required"),
    ({"steps": [{"tasks": [{"cmd": "a"}], "cmd": "b"}]}, "steps[0].cmd: unknown"),
    ({"steps": [{"tasks": [{"cmd": "a", "args": [1]}]}]}, "steps[0].tasks[0].args[0]:"),
    # a task
    (task(unknown_field=1), "steps[0].unknown_field: unknown"),
    (task(**{"odd name": 1}), 'steps[0]["odd name"]: unknown'),
    ({"steps": [{"args": []}]}, "steps[0].cmd: required"),
    (task(cmd=""), "steps[0].cmd:"),
    (task(cmd=7), "steps[0].cmd:"),
    (task(cmd=None), "steps[0].cmd:"),
    (task(cmd=["/bin/true"]), "steps[0].cmd:"),
    (task(cmd="/bin/ec\0ho"), "steps[0].cmd: a NUL"),
    (task(args="one"), "steps[0].args:"),
    (task(args=None), "steps[0].args:"),
    (task(args=["a", 1]), "steps[0].args[1]:"),
    (task(args=["a\0b"]), "steps[0].args[0]: a NUL"),
    (task(args=["a", "v" * 131_072]), "steps[0].args[1]: longer"),
    (task(args=["é" * 65_536]), "steps[0].args[0]: longer"),
    (task(env=["A"]), "steps[0].env:"),
    (task(env={"A": 1}), "steps[0].env.A:"),
    (task(env={"A": None}), "steps[0].env.A:"),
    (task(env={"A": "x\0y"}), "steps[0].env.A: a NUL"),
    (task(env={"A\0B": "x"}), 'steps[0].env["A\\u0000B"]:'),
    (task(env={"": "x"}), 'steps[0].env[""]:'),
    (task(env={"A=B": "x"}), 'steps[0].env["A=B"]:'),
    (task(env={"BIG": "v" * 140_000}), "steps[0].env.BIG: longer"),
    (task(env={"BIG": "v" * (131_071 - 3)}), "steps[0].env.BIG: longer"),
    (task(role="compile"), "steps[0].role:"),
    (task(profile=3), "steps[0].profile:"),
    (task(profile=None), "steps[0].profile:"),
    (task(profile="standard_v1\0"), "steps[0].profile: a NUL"),
    (task(cacheable="yes"), "steps[0].cacheable:"),
    (task(cacheable=1), "steps[0].cacheable:"),
    # limits
    (task(limits=[]), "steps[0].limits:"),
    (task(limits=None), "steps[0].limits:"),
    (task(limits={"wall_ms": "1000"}), "steps[0].limits.wall_ms:"),
    (task(limits={"wall_ms": True}), "steps[0].limits.wall_ms:"),
    (task(limits={"wall_ms": 1.5}), "steps[0].limits.wall_ms:"),
    (task(limits={"wall_ms": 1.0}), "steps[0].limits.wall_ms:"),
    (task(limits={"wall_ms": None}), "steps[0].limits.wall_ms:"),
    (task(limits={"pids": -1}), "steps[0].limits.pids:"),
    (task(limits={"memory_bytes": -(10**30)}), "steps[0].limits.memory_bytes:"),
    (task(limits={"walls": 1}), "steps[0].limits.walls: unknown"),
    # contents
    (task(stdin=5), "steps[0].stdin:"),
    (task(stdin=None), "steps[0].stdin:"),
    (task(stdin=["x"]), "steps[0].stdin:"),
    (task(stdin={}), "steps[0].stdin: exactly one"),
    (task(stdin={"contents": "x"}), "steps[0].stdin: unknown"),
    (task(stdin={"content": "x", "base64": "eA=="}), "steps[0].stdin: exactly one"),
    (task(stdin={"content": "x", "mode": "0644"}), "steps[0].stdin: unknown"),
    (task(stdin={"content": 5}), "steps[0].stdin.content:"),
    (task(stdin={"base64": 5}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "@@@@"}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWI"}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YW Jj"}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWJj\n"}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWI=YWI="}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWJj===="}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWJj="}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "YWI=="}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "===="}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "====", "content": None}), "steps[0].stdin:"),
    (task(stdin={"base64": "YW-_"}), "steps[0].stdin.base64:"),
    (task(stdin={"base64": "é==="}), "steps[0].stdin.base64:"),
    (task(stdin={"file_id": "abc"}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": "../../../etc/passwd"}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": "g" * 64}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": "A" * 64}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": SHA + "\n"}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": SHA + "0"}), "steps[0].stdin.file_id:"),
    (task(stdin={"file_id": None}), "steps[0].stdin.file_id:"),
    # files
    (task(files=["a"]), "steps[0].files:"),
    (task(files={"a": 5}), 'steps[0].files["a"]:'),
    (task(files={"a": {"base64": "%%%"}}), 'steps[0].files["a"].base64:'),
    (task(files={"a": {"content": "x", "mode": 493}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "rwx"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "1777"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "04755"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "0o755"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "0888"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": "\u0660755"}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"content": "x", "mode": None}}), 'steps[0].files["a"].mode:'),
    (task(files={"a": {"mode": "0644"}}), 'steps[0].files["a"]: exactly one'),
    (task(files={"a\0b": "x"}), 'steps[0].files["a\\u0000b"]:'),
    (task(files={"/etc/probe": "x"}), 'steps[0].files["/etc/probe"]:'),
    (task(files={"/box/inside": "x"}), 'steps[0].files["/box/inside"]:'),
    (task(files={"../x": "x"}), 'steps[0].files["../x"]:'),
    (task(files={"a/../../x": "x"}), 'steps[0].files["a/../../x"]:'),
    (task(files={"a/..": "x"}), 'steps[0].files["a/.."]:'),
    (task(files={"": "x"}), 'steps[0].files[""]:'),
    (task(files={".": "x"}), 'steps[0].files["."]:'),
    (task(files={"./": "x"}), 'steps[0].files["./"]:'),
    (task(files={"a/": "x"}), 'steps[0].files["a/"]:'),
    (task(files={"a/.": "x"}), 'steps[0].files["a/."]:'),
    (task(files={"n" * 256: "x"}), "steps[0].files["),
    (task(files={"é" * 128: "x"}), "steps[0].files["),
    (task(files={"/".join(["n" * 99] * 41): "x"}), "steps[0].files["),
    (task(files={"a": "x", "./a": "y"}), 'steps[0].files["./a"]: the same file'),
    (task(files={"a/b": "x", "a//b": "y"}), 'steps[0].files["a//b"]: the same file'),
    (task(files={"a": "x", "a/b": "y"}), 'steps[0].files["a/b"]: runs through'),
    (task(files={"a/b/c": "y", "./a": "x"}), 'steps[0].files["a/b/c"]: runs through'),
    (task(files={"a-b": "", "a/b": "", "a": ""}), 'steps[0].files["a/b"]: runs through'),
    # the other paths
    (task(collect="out"), "steps[0].collect:"),
    (task(collect=[5]), "steps[0].collect[0]:"),
    (task(collect=["a", "/etc/passwd"]), "steps[0].collect[1]:"),
    (task(collect=["../../etc/passwd"]), "steps[0].collect[0]:"),
    (task(collect=[""]), "steps[0].collect[0]:"),
    (task(collect=["."]), "steps[0].collect[0]:"),
    (task(collect=["a\0"]), "steps[0].collect[0]:"),
    (task(collect=[{"path": "a", "store": "yes"}]), "steps[0].collect[0].store:"),
    (task(collect=[{"store": True}]), "steps[0].collect[0].path: required"),
    (task(collect=[{"path": "a", "keep": True}]), "steps[0].collect[0].keep: unknown"),
    (task(collect=[{"path": "/a", "store": True}]), "steps[0].collect[0]:"),
    (task(working_dir="/tmp"), "steps[0].working_dir:"),
    (task(working_dir="a/../.."), "steps[0].working_dir:"),
    (task(working_dir=""), "steps[0].working_dir:"),
    (task(working_dir=None), "steps[0].working_dir:"),
    # pipes
    (pipes({}), "steps[0].pipes[0]."),
    (pipes({"from": [0, "stdout"]}), "steps[0].pipes[0].to: required"),
    (pipes({**pipe(0, 1), "x": 1}), "steps[0].pipes[0].x: unknown"),
    (pipes({"from": [0, "stderr"], "to": [1, "stdin"]}), "steps[0].pipes[0].from[1]:"),
    (pipes({"from": [0, "stdout"], "to": [1, "stdout"]}), "steps[0].pipes[0].to[1]:"),
    (pipes({"from": [0], "to": [1, "stdin"]}), "steps[0].pipes[0].from:"),
    (pipes({"from": [True, "stdout"], "to": [1, "stdin"]}), "steps[0].pipes[0].from[0]:"),
    (pipes(pipe(-1, 1)), "steps[0].pipes[0].from[0]:"),
    (pipes(pipe(0, 3)), "steps[0].pipes[0].to[0]:"),
    (pipes(pipe(3, 0)), "steps[0].pipes[0].from[0]:"),
    (pipes(pipe(1, 1)), "steps[0].pipes[0]:"),
    (pipes(pipe(0, 1), pipe(0, 2)), "steps[0].pipes[1].from:"),
    (pipes(pipe(0, 2), pipe(1, 2)), "steps[0].pipes[1].to:"),
    (pipes(pipe(0, 1), stdin="x"), "steps[0].pipes[0].to:"),
    (pipes(pipe(0, 1), stdin={"file_id": SHA}), "steps[0].pipes[0].to:"),
]


@pytest.mark.parametrize(("value", "detail"), WRONG)
def test_a_wrong_shape_is_a_400_that_names_the_field(value: object, detail: str) -> None:
    problem = refused(value)
    assert (problem.status, problem.code) == (400, "invalid_request")
    assert problem.detail.startswith(detail)
    assert problem.detail.isprintable()


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"steps": [{"cmd": "a"}] * 65}, "steps:"),
        ({"steps": [{"cmd": "a"}, [{"cmd": "a"}] * 9]}, "steps[1]:"),
        ({"steps": [{"tasks": [{"cmd": "a"}] * 9}]}, "steps[0].tasks:"),
        (task(files={str(n): "" for n in range(101)}), "steps[0].files:"),
        ({"steps": [{"cmd": "a", "files": {str(n): "" for n in range(60)}}] * 2}, "steps[1]:"),
    ],
)
def test_too_many_of_something_is_a_422_before_it_is_read(value: object, detail: str) -> None:
    problem = refused(value)
    assert (problem.status, problem.code) == (422, "limits_exceeded")
    assert problem.detail.startswith(detail)


def test_the_smallest_request_gets_every_default() -> None:
    given = read({"steps": [{"cmd": "true"}]})
    assert (given.priority, given.action, given.purpose) == ("interactive", "run", "run")
    assert (given.budget_ms, given.wait, given.stop_on_failure) == (None, True, False)
    assert (given.evaluation_id, given.attempt_id, given.subject) == (None, None, None)
    only = given.steps[0].tasks[0]
    assert (only.args, only.env, only.stdin, only.files) == ((), {}, Inline(b""), ())
    assert (only.working_dir, only.profile, only.role, only.collect) == (".", None, "case", ())


def test_unknown_fields_of_the_request_are_ignored_and_named_in_their_order() -> None:
    assert read(request(zeta={"a": [1]}, alpha=None)).ignored_fields == ("zeta", "alpha")


def test_the_three_ways_to_write_a_step_are_told_apart() -> None:
    steps = [{"cmd": "a"}, [{"cmd": "b"}], {"tasks": [{"cmd": "c"}, {"cmd": "d"}]}]
    given = read({"steps": steps})
    assert [(step.single, len(step.tasks)) for step in given.steps] == [
        (True, 1),
        (False, 1),
        (False, 2),
    ]
    assert given.steps[1].tasks[0].where == "steps[1][0]"
    assert given.steps[2].tasks[1].where == "steps[2].tasks[1]"


def test_two_tasks_may_be_connected_both_ways() -> None:
    given = read(pipes(pipe(0, 1), pipe(1, 0)))
    assert given.steps[0].pipes == (PipeGiven(0, 1), PipeGiven(1, 0))


def test_a_project_queues_as_grading_whatever_it_says() -> None:
    assert read(request(action="project", priority="interactive")).priority == "grading"


def test_every_kind_of_content_is_read() -> None:
    files = {
        "a": "té",
        "b/./c": {"content": "x", "mode": "0755"},
        "d": {"base64": "AP8=", "mode": "600"},
        "e": {"file_id": SHA},
        "f": {"base64": ""},
    }
    given = {each.path: each for each in read(task(files=files)).steps[0].tasks[0].files}
    assert given["a"].content == Inline("té".encode())
    assert (given["a"].mode, given["b/c"].mode, given["d"].mode) == (0o644, 0o755, 0o600)
    assert given["d"].content == Inline(b"\x00\xff")
    assert given["e"].content == Stored(SHA, 'steps[0].files["e"].file_id')
    assert given["f"].content == Inline(b"")


def test_paths_come_out_in_one_spelling_and_collect_keeps_the_clients_own() -> None:
    only = read(task(working_dir="./a//b/", collect=["./x", "x", "d/./y"])).steps[0].tasks[0]
    assert only.working_dir == "a/b"
    assert [(each.written, each.path) for each in only.collect] == [
        ("./x", "x"),
        ("x", "x"),
        ("d/./y", "d/y"),
    ]


def test_names_of_the_full_length_are_taken() -> None:
    path = "/".join(["n" * 255] * 15 + ["m" * 255])
    assert len(path) == 4095
    assert read(task(files={path: "x"})).steps[0].tasks[0].files[0].path == path


def test_an_argument_and_a_variable_of_the_longest_length_are_taken() -> None:
    read(task(args=["v" * 131_071], env={"BIG": "v" * (131_071 - 4)}))


def test_names_that_only_begin_alike_do_not_collide() -> None:
    names = ["a", "a-b", "a.b", "ab", "a0/b", "a0/b.c", "b/a", "\x01", "b\x01"]
    assert len(read(task(files=dict.fromkeys(names, ""))).steps[0].tasks[0].files) == len(names)


def test_identities_may_be_any_text_of_128_characters() -> None:
    given = read(request(evaluation_id="😀" * 128, attempt_id="a b/c", subject="\u2028"))
    assert (given.evaluation_id, given.attempt_id) == ("😀" * 128, "a b/c")


def test_long_names_that_look_alike_once_cut_do_not_hide_a_collision() -> None:
    stem = "n" * 200
    read(task(files={stem + "a": "x", stem + "b": "x"}))
    assert "the same file" in refused(task(files={stem: "x", "./" + stem: "x"})).detail


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("args", ["x"] * 10_001),
        ("env", {f"V{number}": "x" for number in range(1_001)}),
        ("collect", [f"f{number}" for number in range(1_001)]),
    ],
)
def test_more_entries_than_anybody_needs_are_refused_before_they_are_read(
    field: str, value: object
) -> None:
    with pytest.raises(Problem, match=rf"steps\[0\]\.{field}: more than") as refused:
        read_execute({"steps": [{"cmd": "x", field: value}]}, BOUNDS)
    assert refused.value.code == "limits_exceeded"


def test_a_few_unknown_fields_are_named_and_many_are_refused() -> None:
    few = {f"new{number}": 1 for number in range(100)}
    assert len(read_execute({"steps": [{"cmd": "x"}], **few}, BOUNDS).ignored_fields) == 100
    with pytest.raises(Problem, match="more than 100 unknown fields"):
        read_execute({"steps": [{"cmd": "x"}], **few, "new100": 1}, BOUNDS)


def test_an_unknown_field_with_a_name_that_no_field_has_is_refused() -> None:
    """It would come back as long as it is."""
    read_execute({"steps": [{"cmd": "x"}], "n" * 200: 1}, BOUNDS)
    with pytest.raises(Problem, match="longer than the 200 characters") as refused:
        read_execute({"steps": [{"cmd": "x"}], "n" * 201: 1}, BOUNDS)
    assert len(str(refused.value)) < 400
