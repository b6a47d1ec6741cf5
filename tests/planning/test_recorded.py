"""Logs: the service's own lines and the planner's, read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaoler.config.kinds import SettingsError
from gaoler.planning.recorded import Log, Recorded, line_of, read_log
from gaoler.planning.report import summary
from gaoler.planning.simulation import simulate
from gaoler.planning.times import parse_times
from tests.planning.conftest import MS, Come, Plan

# As `gaoler serve` writes them, one of a run and one of a refusal.
SERVICE_LINE = {
    "time": "2026-03-01T10:00:05.500+00:00",
    "level": "info",
    "event": "request",
    "request_id": "a1",
    "method": "POST",
    "path": "/api/v1/execute",
    "status": 200,
    "code": None,
    "duration_ms": 2_500,
    "key_id": "",
    "priority": "interactive",
    "slots": 2,
    "memory_bytes": 1_000,
    "budget_ms": 30_000,
    "queued_ms": 300,
    "setup_ms": 50,
    "run_ms": 2_100,
    "evaluation": "exam-1",
}
REFUSED_LINE = SERVICE_LINE | {
    "time": "2026-03-01T10:00:04.000+00:00",
    "status": 503,
    "code": "capacity_exhausted",
    "duration_ms": 0,
    "setup_ms": None,
    "run_ms": None,
}


def read(tmp_path: Path, *lines: object) -> Log:
    path = tmp_path / "requests.log"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return read_log(path)


def test_a_line_of_the_service_is_a_request_that_came_when_it_had_not_yet_lasted(
    tmp_path: Path,
) -> None:
    log = read(tmp_path, SERVICE_LINE, "", REFUSED_LINE)
    assert log.requests == (
        Recorded(0, "interactive", 2, 1_000, 30_000, 2_100 * MS, 50 * MS, "exam-1"),
        Recorded(1_000 * MS, "interactive", 2, 1_000, 30_000, None, None, "exam-1"),
    )
    assert log.without_run_time == 1


def test_lines_about_something_else_are_passed_over(tmp_path: Path) -> None:
    health = {name: SERVICE_LINE[name] for name in ("time", "event", "request_id", "duration_ms")}
    log = read(tmp_path, {"event": "serving"}, health, SERVICE_LINE)
    assert (len(log.requests), log.passed_over) == (1, 2)


def test_lines_for_people_are_passed_over_and_counted(tmp_path: Path) -> None:
    """Pins: the whole output of bin/serve was refused at its first line."""
    log = read(
        tmp_path,
        "degraded  oom protection: the warden is not protected",
        "[2026-03-01 10:00:00 +0000] [17] [INFO] Starting gunicorn",
        "serve: making the environment in .venv",
        "",
        SERVICE_LINE,
        f"  {json.dumps(REFUSED_LINE)}",
    )
    assert (len(log.requests), log.passed_over) == (2, 3)


@pytest.mark.parametrize(
    "times",
    [
        {"arrival_ms": 10.25},
        {"ts": 1_700_000_002.45},
        {"ts": 1_700_000_002.45, "duration_ms": 2_450},
        {"time": "2026-03-01T10:00:02.450"},
    ],
)
def test_an_arrival_can_be_said_in_each_way(tmp_path: Path, times: dict[str, object]) -> None:
    bare = {
        name: value for name, value in SERVICE_LINE.items() if name not in ("time", "duration_ms")
    }
    second = dict(times)
    first = dict(times)
    if "arrival_ms" in times:
        second["arrival_ms"] = 60.5
    elif "ts" in times:
        second["ts"] = 1_700_000_002.5
    else:
        second["time"] = "2026-03-01T10:00:02.500"
    log = read(tmp_path, bare | first, bare | second)
    gap_ns = round(50.25 * MS) if "arrival_ms" in times else 50 * MS
    assert [request.arrival_ns for request in log.requests] == [0, gap_ns]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"event": "requ', "allowed is a whole JSON object on the line"),
        (SERVICE_LINE | {"time": "noon"}, "time=noon: allowed is an ISO 8601 time"),
        (SERVICE_LINE | {"duration_ms": "1"}, "duration_ms=1: allowed is a number from 0"),
        (SERVICE_LINE | {"run_ms": -1}, "run_ms=-1: allowed is a number from 0"),
        (SERVICE_LINE | {"arrival_ms": None}, "arrival_ms=None: allowed is a number from 0"),
        (SERVICE_LINE | {"slots": 0}, "slots=0: allowed is an integer from 1"),
        (SERVICE_LINE | {"slots": True}, "slots=True: allowed is an integer from 1"),
        (SERVICE_LINE | {"budget_ms": 1.5}, "budget_ms=1.5: allowed is an integer from 1"),
        (SERVICE_LINE | {"memory_bytes": "x"}, "memory_bytes=x: allowed is an integer from 0"),
        (SERVICE_LINE | {"priority": "urgent"}, "priority=urgent: allowed is interactive or"),
        (SERVICE_LINE | {"evaluation_id": 7}, "evaluation_id=7: allowed is a string or null"),
    ],
)
def test_a_wrong_line_is_named_with_its_number_and_field(
    tmp_path: Path, line: object, told: str
) -> None:
    with pytest.raises(SettingsError) as problem:
        read(tmp_path, SERVICE_LINE, line)
    assert str(problem.value).startswith(f"{tmp_path}/requests.log:2: {told}")


def test_a_log_without_a_request_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as problem:
        read(tmp_path, {"event": "serving"}, "[1]")
    told = str(problem.value)
    assert "no request in it that came to the queue (2 lines passed over)" in told
    assert 'expected is a JSON object a line, such as the service\'s log has with "event"' in told


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--log=.*: allowed is a file that can be read"):
        read_log(tmp_path / "nothing")


def test_what_was_simulated_and_recorded_replays_alike(tmp_path: Path, plan: Plan) -> None:
    planned = plan(
        slots=2,
        cap=3,
        students=20,
        evaluations=3,
        setup_ms=30,
        step_ms=20,
        teardown_ms=20,
        copies=0,
        first_click=parse_times("constant:0"),  # a log begins with its first arrival
        think_time=parse_times("exponential:9000"),
        case_time=parse_times("exponential:300"),
        duration_ms=90_000,
    )
    path = tmp_path / "recorded.log"
    with path.open("w") as opened:
        first = simulate(planned, record=lambda request: print(line_of(request), file=opened))
    again = simulate(planned, read_log(path).requests)
    before, after = first.tally.accounts["interactive"], again.tally.accounts["interactive"]
    assert before.refused_in_all > 20
    assert after.waits_ns == before.waits_ns
    assert after.refused == before.refused
    assert summary(first)["slot_use"] == summary(again)["slot_use"]


def test_a_refused_request_that_now_runs_has_a_run_time_of_its_class(
    plan: Plan, come: Come
) -> None:
    log = [
        come(0, 100),
        come(1, None),
        come(2, 300, priority="grading"),
    ]
    outcome = simulate(plan(slots=3), log)
    assert outcome.tally.accounts["interactive"].running.area_ns() == (3 - 0 + 3 - 1) * MS
    longer = simulate(plan(slots=3, duration_ms=1_000), log)
    assert longer.tally.accounts["interactive"].running.area_ns() == 200 * MS


def test_where_no_request_of_the_class_ran_a_refused_one_runs_to_its_budget(
    plan: Plan, come: Come
) -> None:
    outcome = simulate(plan(duration_ms=60_000), [come(0, None, budget_ms=700)])
    assert outcome.tally.accounts["interactive"].running.area_ns() == 700 * MS
