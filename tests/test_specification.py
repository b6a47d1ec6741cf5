"""SPECIFICATION.md names tests that there are, and gives no number twice."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "SPECIFICATION.md").read_text(encoding="utf-8")

_PROMISE = re.compile(r"^- \*\*P-(\d+)\*\* (.*?)(?=^- \*\*P-|^#|\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w/]+)::((?:test_|Test)\w+)`")
PROMISES = [(int(number), text) for number, text in _PROMISE.findall(TEXT)]


@functools.cache
def defined_in(file: str) -> frozenset[str]:
    """What the file, named without its suffix, calls a test: functions, and classes by name."""
    path = TESTS / f"{file}.py"
    if not path.exists():
        return frozenset()
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return frozenset(names)


def test_every_test_that_is_named_exists() -> None:
    named = _NAMED.findall(TEXT)
    assert len(named) > len(PROMISES) / 2  # else the pattern sees nothing
    assert [f"{file}::{name}" for file, name in named if name not in defined_in(file)] == []


def test_what_stands_between_backquotes_like_a_test_is_the_name_of_one() -> None:
    looks_so = re.findall(r"`([^`\s]+::[^`]*)`", TEXT)
    meant = {f"{file}::{name}" for file, name in _NAMED.findall(TEXT)} | {"folder/file::name"}
    assert [text for text in looks_so if text not in meant] == []


def test_no_number_is_given_twice() -> None:
    numbers = [number for number, _ in PROMISES]
    assert [number for number in set(numbers) if numbers.count(number) > 1] == []


@pytest.mark.parametrize(
    "text", [text for _, text in PROMISES], ids=[f"P-{number}" for number, _ in PROMISES]
)
def test_a_promise_names_its_tests_or_says_that_there_is_none(text: str) -> None:
    assert _NAMED.search(text) or "No test yet" in text
