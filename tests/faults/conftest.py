"""Wardens in which a request's id says what fails in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.breaking import ALTERATION, nothing_left
from tests.hosting import LiveWarden


@pytest.fixture(scope="module")
def module_warden(
    session_warden: LiveWarden, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveWarden]:
    """One for the tests of a file.  Needs what the shared one needs."""
    live = LiveWarden(tmp_path_factory.mktemp("warden"), [ALTERATION], runner_ttl_slack_ms=0)
    live.start()
    yield live
    live.stop()


@pytest.fixture
def breakable(module_warden: LiveWarden) -> Iterator[LiveWarden]:
    """A warden that does as requests' ids say; whatever was done, nothing may be left."""
    with nothing_left(module_warden):
        yield module_warden
