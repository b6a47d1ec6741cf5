"""Fuzzed: the rule for workspace paths, against what the kernel makes of them.

Input: a path, UTF-8; bytes that are not become lone surrogates.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gaoler.http import paths as http_paths
from gaoler.http.errors import Problem
from gaoler.sandbox import inputs, paths
from tests.fuzzing.fuzz_job import sealed

LONGEST_BYTES = 300
WORDS = (
    b"..",
    b"../",
    b"./",
    b"/",
    b"//",
    b"/.",
    b"up/",
    b"root",
    b"deep/up/",
    b"deep/file",
    b"\0",
)
IN_THE_WAY = (".", "up", "root", "deep")
SECRET = b"of the host"
# Deeper ones say nothing new and take a call for each name.
_DEEPEST = 40
# A folder in memory is made and removed many times as fast.
_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(data: bytes) -> None:
    path = data.decode("utf-8", "surrogateescape")
    check_rule(path)
    with workspace() as (outside, box):
        check_opened(box, path, outside)
        check_written(box, path)
        assert_untouched(outside)


# --- the rule -----------------------------------------------------------------------------


def check_rule(path: str) -> None:
    """Both validators say the same; what they accept has one spelling, which stays below."""
    fault = paths.fault(path)
    taken = _taken(http_paths.folder, path)
    assert (fault is None) == (taken is not None)
    if taken is None:
        assert fault is not None
        assert fault.isprintable()
        assert _taken(http_paths.file, path) is None
        return
    assert taken == paths.normalise(path) == posixpath.normpath(path)
    assert paths.normalise(taken) == taken
    assert paths.fault(taken) is None
    assert _taken(http_paths.folder, taken) == taken
    assert not taken.startswith("/")
    assert not {"", ".."} & set(taken.split("/"))
    assert len(taken.encode()) <= len(path.encode()) <= 4095
    names_a_folder = path.rpartition("/")[2] in ("", ".")
    assert _taken(http_paths.file, path) == (None if names_a_folder else taken)


def _taken(rule: object, path: str) -> str | None:
    """The normal form, or None where the path is refused, in words for a client."""
    assert callable(rule)
    try:
        normal = rule(path, "the field")
    except Problem as problem:
        check_refusal(problem)
        return None
    assert isinstance(normal, str)
    return normal


def check_refusal(problem: Problem) -> None:
    assert (problem.status, problem.code) == (400, "invalid_request")
    assert problem.detail.startswith("the field: the path ")
    assert problem.detail.isprintable()


# --- the kernel ---------------------------------------------------------------------------


@contextmanager
def workspace() -> Iterator[tuple[Path, int]]:
    """A folder, and a workspace in it with links that lead out, as a descriptor."""
    with tempfile.TemporaryDirectory(prefix="gaoler-paths-", dir=_PLACE) as name:
        outside = Path(name)
        (outside / "secret").write_bytes(SECRET)
        folder = outside / "box"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_bytes(b"in the box")
        (folder / "up").symlink_to("..")
        (folder / "root").symlink_to("/")
        (folder / "deep" / "up").symlink_to("../../secret")
        box = os.open(folder, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield outside, box
        finally:
            os.close(box)


def assert_untouched(outside: Path) -> None:
    assert sorted(entry.name for entry in outside.iterdir()) == ["box", "secret"]
    assert (outside / "secret").read_bytes() == SECRET


def check_opened(box: int, path: str, outside: Path) -> None:
    """Whatever is opened, by whichever path, lies in the workspace."""
    if "\0" in path or not _is_utf8(path):
        return  # no path for the kernel
    for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_DIRECTORY | os.O_RDONLY):
        try:
            opened = paths.open_beneath(box, path, flags)
        except OSError:
            continue
        try:
            place = Path(os.readlink(f"/proc/self/fd/{opened}"))
            assert place.is_relative_to(outside.resolve() / "box")
            if paths.fault(path) is None:
                assert place == outside.resolve() / "box" / paths.normalise(path)
        finally:
            os.close(opened)


def check_written(box: int, path: str) -> None:
    """A file that may be written is written at its normal form, and there alone."""
    normal = paths.normalise(path)
    if normal.count("/") > _DEEPEST or not _is_utf8(path):
        return
    with sealed(b"ours") as source:
        try:
            inputs.write(box, path, 0o644, source, 0, 4)
        except inputs.InputRefused:
            # Of what the rule accepts the kernel refuses only what is in the way.
            first = normal.split("/")[0]
            assert paths.fault(path) is not None or first in IN_THE_WAY
            return
    assert paths.fault(path) is None
    with open(normal, "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=box)) as file:
        assert file.read() == b"ours"
    remove(box, normal)


def remove(box: int, normal: str) -> None:
    """A file and the folders that were made for it.

    Not by shutil: it recurses, and so does not go down as far as a path may.
    """
    os.unlink(normal, dir_fd=box)
    while normal := normal.rpartition("/")[0]:
        try:
            os.rmdir(normal, dir_fd=box)
        except OSError:
            return  # it was there before


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
