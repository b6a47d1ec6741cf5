"""What the rule for paths accepts, and what the kernel makes of it."""

from __future__ import annotations

import os
import posixpath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gaoler.sandbox import inputs, paths
from tests.fuzzing.fuzz_job import sealed
from tests.fuzzing.fuzz_paths import (
    assert_untouched,
    check_opened,
    check_rule,
    check_written,
    fuzz,
    remove,
    workspace,
)
from tests.fuzzing.pace import UNTIMED

NAME = st.sampled_from(["a", "deep", "up", "root", "file", "..", ".", "", "secret", "box", "é😀"])
PATH = st.lists(NAME, max_size=6).map("/".join) | st.text(max_size=12)
LONG = st.builds(
    lambda sign, size, sep, count: sep.join([sign * size] * count),
    st.sampled_from("aé😀"),
    st.sampled_from([1, 63, 64, 127, 128, 255, 256]),
    st.sampled_from(["/", "//", "/./"]),
    st.integers(1, 40),
)


@given(PATH | LONG | st.text(st.characters(), max_size=4))
@example("\ud800")
@example("a" * 4095)
@example("/".join("a" * 2048))
@example("/".join("a" * 2049))
@settings(UNTIMED, max_examples=300)
def test_both_validators_say_the_same_and_leave_one_spelling(path: str) -> None:
    check_rule(path)


@given(PATH)
@settings(UNTIMED, max_examples=100)
def test_no_path_leaves_the_workspace(path: str) -> None:
    with workspace() as (outside, box):
        check_opened(box, path, outside)
        check_written(box, path)
        assert_untouched(outside)


@given(st.binary(max_size=20))
@UNTIMED
def test_bytes_that_are_no_utf_8_are_no_path(data: bytes) -> None:
    fuzz(data)


@given(st.lists(NAME, min_size=1, max_size=4), st.lists(NAME, min_size=1, max_size=4))
@UNTIMED
def test_two_paths_have_one_normal_form_exactly_where_they_are_one_place(
    one: list[str], other: list[str]
) -> None:
    first, second = "/".join(one), "/".join(other)
    if paths.fault(first) is None and paths.fault(second) is None:
        same = posixpath.join("/box", posixpath.normpath(first)) == posixpath.join(
            "/box", posixpath.normpath(second)
        )
        assert (paths.normalise(first) == paths.normalise(second)) == same


@pytest.mark.parametrize(
    "path",
    ["/".join("a" * 2048), "/".join(["é" * 127 + "a"] * 16)[:-1], "x" * 255, "./" * 2047 + "a"],
    ids=["many names", "long names", "one long name", "many dots"],
)
def test_the_longest_paths_that_the_rule_accepts_are_written(path: str) -> None:
    assert paths.fault(path) is None
    with workspace() as (_, box), sealed(b"ours") as source:
        inputs.write(box, path, 0o644, source, 0, 4)
        normal = paths.normalise(path)
        assert os.stat(normal, dir_fd=box).st_size == 4
        remove(box, normal)
        assert sorted(os.listdir(box)) == ["deep", "root", "up"]
