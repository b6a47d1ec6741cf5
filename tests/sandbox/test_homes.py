"""Where the instance's group is made on cgroup v2, and that no process sits in an inner group.

The choice is tried wherever there is a v2 tree to make groups in, on a hybrid host without
controllers; a whole service in a group of its own needs a host with v2 alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gaoler.sandbox import cgroup_v2, hierarchy
from tests.hosting import LIMIT_S, LiveService, eventually, jails_on_host, kill

FIND = (
    "import sys; from gaoler.sandbox import cgroup_v2; "
    "cgroup_v2.CONTROLLERS = tuple(sys.argv[2:]); print(cgroup_v2.find_home(sys.argv[1]))"
)
# What a shell does that is started in a group and then is somebody else.
ENTER = 'echo 0 > "$0/cgroup.procs"; '


def _tree() -> Path:
    mount = hierarchy.v2_mount()
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup v2 tree")
    return Path(mount)


def _controllers() -> tuple[str, ...]:
    """Those to hand down: on a hybrid host v2 has none."""
    return () if cgroup_v2.missing_controllers(str(_tree())) else cgroup_v2.CONTROLLERS


@pytest.fixture
def group() -> Iterator[Path]:
    """A group that a service manager has delegated; its processes are killed at the end."""
    tree = _tree()
    for name in _controllers():
        (tree / "cgroup.subtree_control").write_text(f"+{name}")
    folder = tree / f"test-{os.getpid()}"
    folder.mkdir()
    yield folder
    (folder / "cgroup.kill").write_text("1")
    eventually(lambda: "populated 0" in (folder / "cgroup.events").read_text(), "all have died")
    for child in folder.iterdir():
        if child.is_dir():
            child.rmdir()
    folder.rmdir()


def _pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


@pytest.fixture
def stranger(group: Path) -> Iterator[Callable[[Path], int]]:
    """Starts processes of somebody else in a group."""
    del group  # which outlives them
    started: list[subprocess.Popen[bytes]] = []

    def start(where: Path) -> int:
        command = ["/bin/sh", "-c", ENTER + "echo; exec sleep 600", str(where)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        with process:
            process.kill()


def _find_home(group: Path, mount: str, *before: str) -> str:
    """What a warden in the group says; a shell is its parent, as `gaoler serve` would be."""
    command = (*before, sys.executable, "-c", FIND, mount, *_controllers())
    script = ENTER + '"$@"; exit $?'
    done = subprocess.run(
        ["/bin/sh", "-c", script, str(group), *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout.strip()


def test_a_group_that_is_the_services_alone_is_its_home(group: Path) -> None:
    assert _find_home(group, str(_tree())) == str(group)
    assert (group / "gaoler-service").is_dir()
    handed_down = (group / "cgroup.subtree_control").read_text().split()
    assert handed_down == sorted(_controllers())


def test_a_warden_that_is_started_again_has_the_same_home(
    group: Path, stranger: Callable[[Path], int]
) -> None:
    """By then the web process is there too, which is neither the warden nor its parent."""
    first = _find_home(group, str(_tree()))
    leaf = group / "gaoler-service"
    web = stranger(leaf)
    assert _find_home(leaf, str(_tree())) == first
    assert _pids(leaf) == [web]
    assert _children(leaf) == set()


def test_beside_processes_of_others_the_home_is_the_root_and_nobody_is_moved(
    group: Path, stranger: Callable[[Path], int]
) -> None:
    shell = stranger(group)
    assert _find_home(group, str(_tree())) == str(_tree())
    assert _pids(group) == [shell]
    assert _children(group) == set()


def test_in_a_container_every_process_moves_into_the_leaf_of_its_root(
    group: Path, stranger: Callable[[Path], int], tmp_path: Path
) -> None:
    """Its root of the tree is a group of the host's, with a small init in it, say."""
    init = stranger(group)
    inside = 'mount -t cgroup2 none "$0" && exec "$@"'
    container = ("unshare", "--cgroup", "--mount", "/bin/sh", "-c", inside, str(tmp_path))
    assert _find_home(group, str(tmp_path), *container) == str(tmp_path)
    assert _pids(group) == []
    assert init in _pids(group / "gaoler-service")


def test_a_service_in_a_group_of_its_own_keeps_every_jail_below_it(
    start_service: Callable[..., LiveService], group: Path
) -> None:
    if not _controllers():
        pytest.skip("needs a host with cgroup v2 alone: bin/test-cgroup2")
    service = start_service(wrapper=("/bin/sh", "-c", ENTER + 'exec "$@"', str(group)))
    _expect_all_in_the_leaf(service, group)
    (warden,) = service.pids()["warden"]
    kill(warden)
    eventually(lambda: service.pids().get("warden", [warden]) != [warden], "another warden")
    eventually(lambda: service.request("GET", "/api/v1/health").status == 200, "it is ready")
    _expect_all_in_the_leaf(service, group)
    eventually(lambda: not jails_on_host(service.instance), "every jail has gone")
    assert service.stop() == 0
    assert _children(group) == {"gaoler-service"}


def _expect_all_in_the_leaf(service: LiveService, group: Path) -> None:
    """While a program runs: who is in which group."""
    script = "echo begun; sleep 600"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(service.execute, {"cmd": "/bin/sh", "args": ["-c", script]})
        eventually(lambda: service.pids().get("task"), "the task runs")
        parts = service.pids()
        ours = {pid for part in ("serve", "warden", "arbiter", "worker") for pid in parts[part]}
        assert set(_pids(group / "gaoler-service")) == ours
        assert _children(group) == {"gaoler-service", service.instance}
        (jail,) = _children(group / service.instance)
        inner = group / service.instance / jail
        assert [_pids(x) for x in (group, inner.parent, inner)] == [[], [], []]
        assert set(_pids(inner / "task-0")) >= set(parts["task"])  # the shell may fork yet
        kill(parts["task"][0])
        assert running.result(LIMIT_S).body["results"][0]["outcome"] == "signaled"


def _children(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if entry.is_dir()}
