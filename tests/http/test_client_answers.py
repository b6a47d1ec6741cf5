"""Recorded answers, and what older and newer services make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gaoler.http.client import (
    Answer,
    AnswerGarbled,
    Queue,
    Request,
    RequestRefused,
    RunnerBusy,
    RunnerUnavailable,
    Task,
    Tasks,
    Timing,
)
from gaoler.http.client_answers import (
    Arrived,
    CollectedFile,
    Result,
    read_execute,
    read_health,
    refusal,
)

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> tuple[Arrived, Request]:
    """An answer, and a request of the shape of the one that was asked."""
    kept = json.loads((RECORDED / f"{name}.json").read_text())
    content = json.dumps(kept["body"]).encode()
    steps = (kept["request"] or {"steps": [{}]})["steps"]
    asked = Request([_step(step) for step in steps])
    return Arrived(kept["status"], httpx.Headers(kept["headers"]), content), asked


def _step(step: Any) -> Any:
    if isinstance(step, list):
        return [Task("true") for _ in step]
    return Tasks([Task("true") for _ in step["tasks"]]) if "tasks" in step else Task("true")


def answer(name: str) -> Answer:
    return read_execute(*recorded(name))


EVERY = ["execute", "older_names_budget", "older_silent", "newer"]


@pytest.mark.parametrize("name", EVERY)
def test_the_results_are_read_whatever_the_services_age(name: str) -> None:
    got = answer(name)
    assert got.request_id == "recorded"
    first, side_by_side, piped = got.results
    assert isinstance(first, Result)
    assert not isinstance(side_by_side, Result)
    assert not isinstance(piped, Result)
    assert first.succeeded
    assert (first.stdout, first.stdout_bytes, first.stderr_bytes) == ("\ufffd\n", b"\xff\n", b"e\n")
    assert [each.stdout for each in side_by_side] == ["1\n", ""]
    assert (side_by_side[1].outcome, side_by_side[1].signal) == ("signaled", 11)
    assert (piped[0].reason, piped[1].stdout) == ("left_first", "to\n")
    assert got.each == (first, *side_by_side, *piped)
    assert {name: file.data for name, file in first.files.items()} == {
        "text": b"t",
        "raw": b"\xff",
        "none": None,
    }
    assert first.files["none"].error == "missing"
    assert first.files["raw"].size_bytes == 1
    assert first.stats.wall_ms == 139
    assert got.overrun is False


@pytest.mark.parametrize(
    ("name", "ignored"),
    [("execute", ()), ("older_names_budget", ("budget_ms",)), ("older_silent", ())],
)
def test_a_service_that_ignores_the_budget_is_taken_all_the_same(
    name: str, ignored: tuple[str, ...]
) -> None:
    got = answer(name)
    assert got.ignored_fields == ignored
    assert (got.timing == Timing()) is (name == "older_silent")


def test_an_overrun_is_an_answer() -> None:
    got = answer("overrun")
    assert got.overrun
    assert [(each.outcome, each.timed_out) for each in got.each] == [
        ("timed_out", True),
        ("not_started", True),
    ]
    assert got.timing.budget_ms == 6_000


@pytest.mark.parametrize("name", ["busy", "newer_busy"])
def test_a_busy_service_is_read_whatever_its_age(name: str) -> None:
    with pytest.raises(RunnerBusy) as caught:
        answer(name)
    error = caught.value
    assert (error.code, error.reason, error.retry_after_s) == ("capacity_exhausted", "busy", 10)
    assert error.queue == Queue(waiting=0, position=1, eta_ms=9_009)


@pytest.mark.parametrize(
    ("name", "code", "detail"),
    [
        ("refused", "limits_exceeded", "steps[0].limits.pids: allowed is 1 to 1024"),
        ("invalid", "invalid_request", "steps[0].cmd: "),
    ],
)
def test_a_refusal_names_the_field(name: str, code: str, detail: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        answer(name)
    assert caught.value.code == code
    assert caught.value.detail.startswith(detail)
    assert caught.value.request_id == "recorded"


def test_a_healthy_service_is_read() -> None:
    read_health(recorded("health")[0])


@pytest.mark.parametrize(
    "steps",
    [
        [Task("true")],
        [Task("true")] * 3,
        [Task("true"), [Task("true")] * 2, [Task("true")]],
        [[Task("true")], [Task("true")] * 2, [Task("true")] * 2],
    ],
)
def test_results_of_another_shape_than_the_steps_are_garbled(steps: Any) -> None:
    with pytest.raises(AnswerGarbled, match="shape of the steps"):
        read_execute(recorded("execute")[0], Request(steps))


def test_the_exact_bytes_are_those_of_the_text_where_there_are_no_others() -> None:
    result = Result("completed", stdout="é\0", stderr="x", stderr_base64=b"\xff")
    assert (result.stdout_bytes, result.stderr_bytes) == ("é\0".encode(), b"\xff")


def test_an_empty_collected_file_has_empty_bytes_and_a_stored_one_none() -> None:
    assert CollectedFile(content="").data == b""
    assert CollectedFile(base64=b"").data == b""
    assert CollectedFile(file_id="ab" * 32).data is None


@pytest.mark.parametrize(
    ("outcome", "code", "succeeded"),
    [("completed", 0, True), ("completed", 1, False), ("output_limit", None, False)],
)
def test_only_exit_code_0_is_success(outcome: str, code: int | None, succeeded: bool) -> None:
    assert Result(outcome, exit_code=code).succeeded is succeeded


def test_an_answer_that_is_nested_without_end_is_garbled() -> None:
    """Pins: a RecursionError came through, which is no RunnerError."""
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(AnswerGarbled):
        read_execute(Arrived(200, {}, b'{"other": ' + deep + b"}"), Request([Task("true")]))
    error = refusal(Arrived(503, {}, b'{"queue": ' + deep + b"}"))
    assert isinstance(error, RunnerUnavailable)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("99999999999", 10**9),
        ("9" * 5_000, None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_a_pause_of_whatever_length_is_read(header: str, seconds: int | None) -> None:
    error = refusal(Arrived(429, httpx.Headers({"Retry-After": header}), b"{}"))
    assert isinstance(error, RunnerBusy)
    assert error.retry_after_s == seconds
