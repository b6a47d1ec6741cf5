"""Fixtures of the real sandbox, and the promise that no test leaves anything behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.alterations.layers_off import LAYERS
from tests.emulation import STRETCH, left_out
from tests.hosting import LiveService, LiveWarden, eventually, shell


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        metavar="LAYER",
        help="run against a sandbox without this layer (tests/alterations/layers_off.py)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where all is emulated, leave out what tests/emulation.py names."""
    if STRETCH == 1:
        return
    for item in items:
        function = item.name.partition("[")[0]
        file = os.path.relpath(item.path, Path(__file__).parent)
        reason = left_out(file, function)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"{function}: {reason}"))


@functools.cache
def _why_not() -> str | None:
    """Why this host cannot hold a task; None where it can.  Asked in a process of its own,
    which may end with children that hang in the kernel."""
    if os.geteuid() != 0:
        return "a real sandbox needs root"
    script = (
        "from gaoler.sandbox import layers; "
        "print(', '.join(f'{x.name}: {x.why}' for x in layers.stops_start(layers.survey())))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    missing = asked.stdout.strip()
    return f"this host cannot hold a task ({missing})" if missing else None


def _need_sandbox() -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def session_warden(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LiveWarden]:
    _need_sandbox()
    without = request.config.getoption("--without")
    alterations = [f"layers_off:{LAYERS[without].__name__}"] if without else []
    warden = LiveWarden(tmp_path_factory.mktemp("warden"), alterations).start()
    # Connected is not yet accepted: whoever counts its descriptors wants it to have begun.
    warden.run_one(shell("true"))
    yield warden
    warden.stop()


@pytest.fixture
def warden(session_warden: LiveWarden) -> Iterator[LiveWarden]:
    """A warden that all tests share; after each no jail of it may be left."""
    live = session_warden
    yield live
    eventually(
        lambda: live.jails() == [],
        lambda: f"jails are left: {live.jails()}",
    )


@pytest.fixture
def real_sandbox(warden: LiveWarden) -> object:
    """The real sandbox, for the tests that hold it and its double to one contract."""
    return warden.client


@pytest.fixture
def start_warden(tmp_path: Path) -> Iterator[Callable[..., LiveWarden]]:
    """Wardens of a test's own, to be killed or configured; stopped when the test is over."""
    _need_sandbox()
    wardens: list[LiveWarden] = []

    def start(*alterations: str, **overrides: object) -> LiveWarden:
        folder = tmp_path / f"warden-{len(wardens)}"
        wardens.append(LiveWarden(folder, alterations, **overrides).start())
        return wardens[-1]

    yield start
    for live in wardens:
        live.stop()


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[Callable[..., LiveService]]:
    """Whole services with the given settings; stopped when the test is over."""
    _need_sandbox()
    services: list[LiveService] = []
    # pytest's folders are root's alone; the service's user must reach its own.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)

    def start(wrapper: tuple[str, ...] = (), **environment: str) -> LiveService:
        folder = tmp_path / f"service-{len(services)}"
        folder.mkdir()
        services.append(LiveService(folder, wrapper, **environment).start())
        return services[-1]

    yield start
    for live in services:
        live.stop()
