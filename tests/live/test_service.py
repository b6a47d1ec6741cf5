"""A whole service, from `gaoler serve` to the program and back."""

from __future__ import annotations

from collections.abc import Callable

from tests.hosting import LiveService


def test_a_program_runs_and_nothing_is_left(start_service: Callable[..., LiveService]) -> None:
    service = start_service()
    answer = service.execute({"cmd": "python3", "args": ["-c", "print(6 * 7)"]})
    assert answer.status == 200
    assert answer.body["results"][0]["stdout"] == "42\n"
    assert service.stop() == 0
