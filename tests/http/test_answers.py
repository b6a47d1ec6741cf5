"""Results as clients read them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from gaoler.actors.messages import Answer
from gaoler.http.answers import execute_answer, kept_bytes
from gaoler.http.decode import decode
from gaoler.http.large import LARGE_BYTES, pieces
from gaoler.http.schemas import Bounds, read_execute
from gaoler.sandbox.job import Collected, Stats, TaskResult

DONE = TaskResult("completed", exit_code=0)


def answered(steps: list[Any], *results: tuple[TaskResult, ...], **more: Any) -> dict[str, Any]:
    """The answer as a client decodes it."""
    given = read_execute({"steps": steps, **more}, Bounds(64, 8, 100))
    answer = Answer(tuple(results), queued_ms=1, setup_ms=2, run_ms=3, budget_ms=4)
    decoded = decode(b"".join(pieces(execute_answer("r", given, answer))))
    assert isinstance(decoded, dict)
    return decoded


def one(result: TaskResult, **task: Any) -> dict[str, Any]:
    body = answered([{"cmd": "a", **task}], (result,))
    assert isinstance(body["results"][0], dict)
    return body["results"][0]


def test_results_have_the_shape_of_the_steps() -> None:
    steps = [{"cmd": "a"}, [{"cmd": "b"}], {"tasks": [{"cmd": "c"}, {"cmd": "d"}]}]
    results = answered(steps, (DONE,), (DONE,), (DONE, DONE))["results"]
    assert isinstance(results[0], dict)
    assert [len(each) for each in results[1:]] == [1, 2]


def test_the_answer_has_every_promised_member() -> None:
    body = answered([{"cmd": "a"}], (DONE,), newer_field=1)
    assert body["request_id"] == "r"
    assert body["ignored_fields"] == ["newer_field"]
    assert body["timing"] == {"queued_ms": 1, "setup_ms": 2, "run_ms": 3, "budget_ms": 4}
    assert (body["overrun"], body["cached_steps"]) == (False, 0)
    assert body["results"][0]["cached"] is False
    assert set(body["results"][0]["stats"]) == {
        "wall_ms",
        "cpu_user_ms",
        "cpu_system_ms",
        "memory_peak_bytes",
        "pids_peak",
        "oom_kills",
        "pids_limit_hits",
    }


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal"),
    [
        ("completed", 3, None),
        ("signaled", None, 9),
        ("timed_out", None, None),
        ("output_limit", None, None),
        ("memory_limit", None, None),
        ("policy_violation", None, None),
        ("not_started", None, None),
        ("setup_failed", None, None),
    ],
)
def test_exit_code_and_signal_are_set_only_where_the_task_ended_by_itself(
    outcome: str, exit_code: int | None, signal: int | None
) -> None:
    shown = one(TaskResult(outcome, exit_code=3, signal=9))
    assert (shown["exit_code"], shown["signal"]) == (exit_code, signal)


def test_text_comes_as_text_alone() -> None:
    shown = one(TaskResult("completed", exit_code=0, stdout="é\0\u2028</x>😀".encode()))
    assert shown["stdout"] == "é\0\u2028</x>😀"
    assert "stdout_base64" not in shown
    assert "stderr_base64" not in shown


def test_a_replacement_character_that_was_printed_is_text() -> None:
    shown = one(TaskResult("completed", exit_code=0, stdout="\ufffd".encode()))
    assert shown["stdout"] == "\ufffd"
    assert "stdout_base64" not in shown


@pytest.mark.parametrize("data", [b"\xff\xfe", b"caf\xc3", b"\xed\xa0\x80", b"a\xc0\x80"])
def test_bytes_that_are_no_text_come_twice(data: bytes) -> None:
    shown = one(TaskResult("output_limit", stderr=data, stderr_truncated=True))
    assert "\ufffd" in shown["stderr"]
    assert base64.b64decode(shown["stderr_base64"]) == data
    assert (shown["stderr_truncated"], shown["stdout_truncated"]) == (True, False)


def test_collected_files_come_under_the_clients_own_spelling() -> None:
    files = (
        Collected("a", data=b"text"),
        Collected("d/b", data=b"\xff\x00"),
        Collected("c", error="missing"),
    )
    collect = ["./a", "a", "d//b", "c", "late"]
    shown = one(TaskResult("completed", exit_code=0, files=files), collect=collect)["files"]
    text = {"size_bytes": 4, "sha256": hashlib.sha256(b"text").hexdigest(), "content": "text"}
    assert shown == {
        "./a": text,
        "a": text,
        "d//b": {
            "size_bytes": 2,
            "sha256": hashlib.sha256(b"\xff\x00").hexdigest(),
            "base64": "/wA=",
        },
        "c": {"error": "missing"},
    }


def test_an_overrun_is_what_the_budget_kept_from_starting() -> None:
    late = TaskResult("not_started", reason="budget", timed_out=True)
    failed = TaskResult("not_started", reason="earlier_step_failed")
    own_limit = TaskResult("timed_out", reason="wall", timed_out=True)
    two = [{"cmd": "a"}, {"cmd": "b"}]
    assert answered(two, (DONE,), (late,))["overrun"] is True
    assert answered(two, (DONE,), (failed,))["overrun"] is False
    assert answered(two, (DONE,), (own_limit,))["overrun"] is False


def test_a_stub_marks_every_result() -> None:
    given = read_execute({"steps": [{"cmd": "a"}]}, Bounds(1, 1, 1))
    answer = Answer(((TaskResult("completed", exit_code=0, stats=Stats()),),), 0, 0, 0, 0)
    body: Any = execute_answer("r", given, answer, stub=True)
    assert body["results"][0]["stub"] is True


@pytest.mark.parametrize("size", [LARGE_BYTES - 1, LARGE_BYTES])
def test_large_outputs_and_files_come_as_small_ones_do(size: int) -> None:
    data, text = b"\xff" * size, b"x" * size
    files = (Collected("f", data), Collected("g", text))
    shown = one(
        TaskResult("completed", exit_code=0, stdout=data, stderr=text, files=files),
        collect=["f", "g"],
    )
    assert base64.b64decode(shown["stdout_base64"]) == data
    assert shown["stdout"] == data.decode("utf-8", "replace")
    assert (shown["stderr"], "stderr_base64" in shown) == (text.decode(), False)
    assert base64.b64decode(shown["files"]["f"]["base64"]) == data
    assert shown["files"]["g"]["content"] == text.decode()
    assert shown["files"]["g"]["sha256"] == hashlib.sha256(text).hexdigest()


def test_what_is_echoed_of_the_request_counts_as_kept() -> None:
    path = "p" * 200
    task = {"cmd": "a", "collect": [path]}
    given = read_execute({"steps": [task], "x" * 90: 1}, Bounds(64, 8, 100))
    result = TaskResult("completed", stdout=b"1234", files=(Collected(path, error="missing"),))
    assert kept_bytes(given, Answer(((result,),), 0, 0, 0, 0)) == 4 + 2 * 200 + 90
