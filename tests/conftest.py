"""Fixtures of the real sandbox, and the promise that no test leaves anything behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosting import LiveService, LiveWarden, eventually, jails_on_host


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("a real sandbox needs root")


@pytest.fixture(scope="session")
def session_warden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWarden]:
    _need_root()
    warden = LiveWarden(tmp_path_factory.mktemp("warden")).start()
    yield warden
    warden.stop()


@pytest.fixture
def warden(session_warden: LiveWarden) -> Iterator[LiveWarden]:
    """A warden that all tests share; after each no jail of it may be left."""
    live = session_warden
    yield live
    eventually(
        lambda: jails_on_host(live.instance) == [],
        lambda: f"jails are left: {jails_on_host(live.instance)}",
    )


@pytest.fixture
def real_sandbox(warden: LiveWarden) -> object:
    """The real sandbox, for the tests that hold it and its double to one contract."""
    return warden.client


@pytest.fixture
def start_warden(tmp_path: Path) -> Iterator[Callable[..., LiveWarden]]:
    """Wardens of a test's own, to be killed or configured; stopped when the test is over."""
    _need_root()
    wardens: list[LiveWarden] = []

    def start(**overrides: object) -> LiveWarden:
        wardens.append(LiveWarden(tmp_path / f"warden-{len(wardens)}", **overrides).start())
        return wardens[-1]

    yield start
    for live in wardens:
        live.stop()


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[Callable[..., LiveService]]:
    """Whole services with the given settings; stopped when the test is over."""
    _need_root()
    services: list[LiveService] = []
    # pytest's folders are root's alone; the service's user must reach its own.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)

    def start(**environment: str) -> LiveService:
        folder = tmp_path / f"service-{len(services)}"
        folder.mkdir()
        services.append(LiveService(folder, **environment).start())
        return services[-1]

    yield start
    for live in services:
        live.stop()
