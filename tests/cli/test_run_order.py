"""What `gaoler run` asks a service for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gaoler.cli.run_order import TIMES, Order, Upload, request
from gaoler.config.runtimes import program
from gaoler.http.client_body import body
from gaoler.http.client_times import budget_ms, patience_ms


def order(name: str, **fields: object) -> Order:
    made = program(name, "")
    uploads = (Upload(made.file_name, b"source"), Upload("data/x", b"\xff", 0o755))
    return Order(made, uploads, **fields)  # type: ignore[arg-type]


def sent(asked: Order) -> Any:
    """The body that goes out."""
    return json.loads(body(request(asked), budget_ms(request(asked), TIMES)))


def test_an_interpreted_program_is_one_step() -> None:
    asked = order(
        "a.py", arguments=("-x",), env=(("A", "1"),), stdin=b"in", timeout_ms=5, memory_bytes=6
    )
    assert sent(asked) == {
        "steps": [
            {
                "cmd": "python3",
                "args": ["a.py", "-x"],
                "env": {"A": "1"},
                "stdin": {"content": "in"},
                "limits": {"wall_ms": 5, "memory_bytes": 6},
                "files": {
                    "a.py": {"content": "source", "mode": "0644"},
                    "data/x": {"base64": "/w==", "mode": "0755"},
                },
            }
        ],
        "stop_on_failure": True,
        "budget_ms": 5 + 500 + 2_000,
    }


def test_a_compiled_program_is_built_first_and_the_run_alone_has_the_limits() -> None:
    asked = sent(order("a.c", arguments=("x",), timeout_ms=5, priority="grading"))
    build, step = asked["steps"]
    assert build["role"] == "build"
    assert set(build["files"]) == {"a.c", "data/x"}
    assert "limits" not in build
    assert (step["cmd"], step["args"], step["limits"]) == ("./program", ["x"], {"wall_ms": 5})
    assert asked["priority"] == "grading"


@pytest.mark.parametrize(
    ("asked", "expected_ms"),
    [
        (order("a.py"), (10_000 + 500 + 2_000) + 20_000 + 2_000),
        (order("a.py", timeout_ms=1_000), (1_000 + 500 + 2_000) + 20_000 + 2_000),
        (
            order("a.c", priority="grading"),
            (20_000 + 500 + 2_000) + (10_000 + 500) + 60_000 + 2_000,
        ),
    ],
)
def test_we_wait_for_budget_allowance_and_slack(asked: Order, expected_ms: int) -> None:
    assert patience_ms(request(asked), TIMES) == expected_ms


def test_the_ceiling_is_the_services_own() -> None:
    """Pins: a service that gives more than the default must not be held to the default."""
    assert sent(order("a.py", timeout_ms=45_000))["budget_ms"] == 45_000 + 500 + 2_000


@pytest.mark.parametrize("data", [b"\xff", b"\0" * 1000])
def test_what_is_no_text_is_sent_as_base64(data: bytes) -> None:
    asked = sent(order("a.py", stdin=data))
    assert set(asked["steps"][0]["stdin"]) == {"base64"}
