"""Tests on an emulated host: everything is slower there, and some tests say nothing there.

bin/test-cgroup2 boots another kernel with cgroup v2 alone and sets GAOLER_TEST_STRETCH, by
how much longer everything may take.  What holds is tested there, never how fast.
"""

from __future__ import annotations

import os

STRETCH = float(os.environ.get("GAOLER_TEST_STRETCH", "1"))


def stretched(amount: float) -> float:
    """An upper bound of a time, in whatever unit, that also holds where all is slower."""
    return amount * STRETCH


# Tests that are not run there, as file::function below tests/, and why.
LEFT_OUT = {
    "live/test_soak.py::test_a_soak_of_hostile_and_normal_requests_with_random_kills_leaves_nothing": (
        "a soak, which takes minutes there"
    ),
}
