"""Scenarios and logs in a line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gaoler.config.settings import Settings
from gaoler.planning.recorded import Recorded
from gaoler.planning.scenario import Scenario, scenario

MS = 1_000_000

Plan = Callable[..., Scenario]
Come = Callable[..., Recorded]


@pytest.fixture
def plan() -> Plan:
    """A scenario under the service's default settings; options are typed values."""
    bare = scenario(Settings(), {"slots": 1, "setup_ms": 0, "step_ms": 0, "teardown_ms": 0})

    def make(**options: object) -> Scenario:
        return replace(bare, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def come() -> Come:
    """A recorded request: arrival and run time in milliseconds, then what is unusual of it."""

    def make(arrival_ms: float, run_ms: float | None, **more: object) -> Recorded:
        bare = Recorded(
            arrival_ns=round(arrival_ms * MS),
            priority="interactive",
            slots=1,
            memory_bytes=0,
            budget_ms=30_000,
            run_ns=None if run_ms is None else round(run_ms * MS),
        )
        return replace(bare, **more)  # type: ignore[arg-type]

    return make
