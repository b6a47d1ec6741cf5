"""A service of doubles, and the folder that it lives in."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import USER, Served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a STATE_DIR in it that is the service user's."""
    (tmp_path / "state").mkdir()
    # pytest's folders are its user's alone; the service's user must reach its own.
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    if os.geteuid() == 0:
        user = pwd.getpwnam(USER)
        os.chown(tmp_path / "state", user.pw_uid, user.pw_gid)
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    service = Served(folder).ready()
    yield service
    if service.process.poll() is None:
        service.stop()
