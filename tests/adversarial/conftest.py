"""Every probe is also looked at from the host's side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adversarial.probing import host_untouched
from tests.hosting import LiveWarden


@pytest.fixture(autouse=True)
def untouched(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that uses the shared warden the host is as it was before."""
    if "warden" not in request.fixturenames:
        yield
        return
    live: LiveWarden = request.getfixturevalue("warden")
    with host_untouched(live):
        yield
