"""The list of tests that are left out on an emulated host names tests that there are."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.emulation import LEFT_OUT

TESTS = Path(__file__).parent


def test_every_test_that_is_left_out_in_emulation_exists() -> None:
    for name in LEFT_OUT:
        file, _, function = name.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert not function or function in {
            x.name for x in tree.body if isinstance(x, ast.FunctionDef)
        }, name
