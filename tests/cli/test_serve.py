"""`gaoler serve` over a warden and a web process that are doubles: what it holds, and its ends.

The doubles are in tests/doubles.py, whole services in tests/live.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
from pathlib import Path

import pytest

from gaoler.cli import children, instances, listeners, serve, specs
from gaoler.cli.children import StartFailed
from gaoler.config.settings import load
from tests.doubles import USER, Served
from tests.hosting import LIMIT_S, eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the service is started by root")


def refused(folder: Path, settings: dict[str, str], code: int = 4) -> str:
    """The one line that a start with these settings ends with; no child was started."""
    found, said = Served(folder, **settings).ended()
    said = [line for line in said if "address_in_use" not in line]  # it waited for a moment
    assert (found, len(said)) == (code, 1), said
    assert not (folder / "warden.json").exists()
    return said[0]


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


# --- the sockets --------------------------------------------------------------------------


@as_root
def test_it_starts_says_so_and_stops_as_told(served: Served) -> None:
    assert int(served.answer()) in served.children()
    assert served.stop() == (0, [])


@as_root
@pytest.mark.parametrize("name", ["BIND", "INTERNAL_BIND"])
def test_an_address_that_another_has_stops_the_start_before_anything_is_started(
    folder: Path, name: str
) -> None:
    """Pins: "gaoler is ready" was said when another service answered on BIND."""
    with listener() as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(folder, {name: address})
    assert line == (f"gaoler serve: {name}={address} cannot be listened on: Address already in use")


@as_root
def test_an_address_that_is_not_this_hosts_stops_the_start(folder: Path) -> None:
    line = refused(folder, {"BIND": "192.0.2.1:9000", "API_KEYS": "k" * 16})
    assert line.startswith("gaoler serve: BIND=192.0.2.1:9000 cannot be listened on: ")


@as_root
def test_the_port_is_never_free_while_the_web_process_is_started_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes in between waits, and nobody else can have the port."""
    monkeypatch.setattr(listeners, "PATIENCE_S", 0.0)
    before = int(served.answer())
    os.kill(served.process.pid, signal.SIGSTOP)  # so that it does not start another yet
    os.kill(before, signal.SIGKILL)
    eventually(lambda: before not in served.children(), "the web process ended")
    with pytest.raises(StartFailed, match="already in use"):
        listeners.listen("BIND", ("127.0.0.1", served.port))
    with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        os.kill(served.process.pid, signal.SIGCONT)
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert int(answer.split()[-1]) != before
    assert served.stop()[0] == 0


@as_root
def test_the_warden_inherits_no_socket(served: Served) -> None:
    held = json.loads((served.folder / "warden.json").read_text())
    assert held
    assert [name for name in held if name.startswith("socket:")] == []


@as_root
def test_a_closed_standard_input_does_not_become_a_socket_of_the_warden(folder: Path) -> None:
    service = Served(folder, patch="os.close(0)").ready()
    held = json.loads((folder / "warden.json").read_text())
    assert [name for name in held if name.startswith("socket:")] == []
    assert service.stop()[0] == 0


def test_a_socket_is_bound_for_both_families_and_inherited_by_nobody_unasked() -> None:
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with listeners.listen("BIND", (host, 0)) as sock:
            assert sock.family == family
            assert sock.getsockname()[0] == host
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            assert not sock.get_inheritable()
            assert not sock.getblocking()


def test_a_host_that_has_no_address_is_one_line() -> None:
    for host in ("no-such-host.invalid", "x" * 64 + ".invalid"):
        with pytest.raises(StartFailed, match=f"^BIND={host}:80 cannot be listened on: .") as found:
            listeners.listen("BIND", (host, 80))
        assert str(found.value).isprintable()


# --- what is refused before the start -----------------------------------------------------


@as_root
@pytest.mark.parametrize("name", ["BIND", "INTERNAL_BIND"])
def test_a_service_on_any_free_port_is_refused(folder: Path, name: str) -> None:
    line = refused(folder, {name: "127.0.0.1:0"}, code=2)
    assert line.startswith(f"gaoler: {name}=127.0.0.1:0: allowed is a port from 1")


@as_root
def test_a_state_dir_that_the_service_user_does_not_own_is_refused(folder: Path) -> None:
    a_file = folder / "file"
    a_file.touch()
    roots = folder / "roots"
    roots.mkdir()
    for path in (folder / "missing", a_file, roots):
        line = refused(folder, {"STATE_DIR": str(path)})
        assert line.startswith(
            f"gaoler serve: STATE_DIR={path}: allowed is a folder that {USER} owns; "
        )


@as_root
def test_a_runtime_dir_that_cannot_be_made_is_refused(folder: Path) -> None:
    (folder / "file").touch()
    for path in (folder / "file" / "run", folder / "file"):
        line = refused(folder, {"RUNTIME_DIR": str(path)})
        assert line.startswith(f"gaoler serve: RUNTIME_DIR={path}: allowed is a folder that can")


@as_root
def test_too_little_memory_for_one_task_is_refused(folder: Path) -> None:
    line = refused(folder, {"TASKS_MEMORY_BYTES": str(512 * 2**20)}, code=2)
    assert line.startswith("gaoler: TASKS_MEMORY_BYTES=536870912: allowed is at least 922746880,")
    assert "MEMORY_LIMIT_BYTES (536870912)" in line


# --- one service for each STATE_DIR -------------------------------------------------------


@as_root
def test_a_runtime_dir_that_somebody_else_could_replace_is_refused(folder: Path) -> None:
    """Root makes and opens files in it by name."""
    between = folder / "between"
    between.mkdir()
    path = between / "run"
    path.mkdir()
    shutil.chown(between, USER)
    line = refused(folder, {"RUNTIME_DIR": str(path)})
    assert line.startswith(f"gaoler serve: RUNTIME_DIR={path}: allowed is a folder that nobody")
    shutil.chown(between, "root")
    between.chmod(0o777)
    assert f"others can write to {between}" in refused(folder, {"RUNTIME_DIR": str(path)})


@as_root
@pytest.mark.parametrize("other_runtime_dir", [False, True])
def test_a_second_service_with_the_same_state_does_not_start(
    served: Served, other_runtime_dir: bool
) -> None:
    """Pins: with another RUNTIME_DIR it started, and swept the jails of the first."""
    (served.folder / "warden.json").unlink()
    name = "run-2" if other_runtime_dir else "run"
    settings = {"RUNTIME_DIR": str(served.folder / name), "UID_RANGE": "1600000-1600999"}
    line = refused(served.folder, settings)
    state = served.folder / "state"
    assert line == f"gaoler serve: another gaoler with STATE_DIR={state} runs already"


@as_root
def test_what_was_locked_is_free_again_where_the_rest_cannot_be_locked(folder: Path) -> None:
    (folder / "file").touch()
    user = pwd.getpwnam(USER)
    for runtime_dir, outcome in (("file", StartFailed), ("run", None), ("run", None)):
        settings = load(
            {"STATE_DIR": str(folder / "state"), "RUNTIME_DIR": str(folder / runtime_dir)}
        )
        where = specs.runtime_dir_of(settings, specs.instance_of(settings))
        if outcome is not None:
            with pytest.raises(outcome):
                instances.lock(settings, where, user)
            continue
        for descriptor in instances.lock(settings, where, user):
            os.close(descriptor)


# --- ends ---------------------------------------------------------------------------------


@as_root
def test_an_exception_of_the_supervision_stops_both_children_in_order(folder: Path) -> None:
    """Pins: an IndexError ended `gaoler serve` with a traceback."""
    patch = """
def fail(self):
    raise IndexError("list index out of range")
serve.Service._replace = lambda self, child: fail(self)
"""
    service = Served(folder, patch=patch).ready()
    before = service.children()
    assert len(before) == 2
    os.kill(int(service.answer()), signal.SIGKILL)
    code, said = service.ended()
    assert code == 1
    logged, line = said
    assert json.loads(logged)["event"] == "supervision_failed"
    assert "IndexError" in json.loads(logged)["traceback"]
    assert line == "gaoler serve: failed: IndexError; see the log above"
    assert [pid for pid in before if Path(f"/proc/{pid}").exists()] == []


@as_root
def test_an_exception_while_the_web_process_is_stopped_still_stops_the_warden(
    folder: Path,
) -> None:
    patch = """
def fail(self):
    raise OSError(12, "Cannot allocate memory")
serve.Service._stop_web = fail
"""
    service = Served(folder, patch=patch).ready()
    before = service.children()
    code, said = service.stop()
    assert (code, said[-1]) == (1, "gaoler serve: failed: OSError; see the log above")
    for pid in before:
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "it ended")


@as_root
@pytest.mark.parametrize("warden", ["import signal; signal.pause()", "pass"])
def test_a_warden_that_does_not_become_ready_is_killed_and_reaped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, warden: str
) -> None:
    started: list[int] = []
    spawn = children.spawn

    def spawn_double(
        arguments: list[str], environment: dict[str, str], keep: list[int], prepare: object
    ) -> int:
        del arguments, prepare
        started.append(spawn(["-c", warden], environment, keep, lambda: None))
        return started[-1]

    monkeypatch.setattr(children, "spawn", spawn_double)
    monkeypatch.setattr(children, "START_LIMIT_S", 0.0 if "pause" in warden else LIMIT_S)
    settings = load({"STATE_DIR": str(folder / "state"), "SERVICE_USER": USER})
    service = serve.Service(settings)
    with pytest.raises(StartFailed, match="the warden did not start"):
        service.warden.launch()
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
    os.close(service.lifeline)
    service.drain.close()


# --- process groups -----------------------------------------------------------------------


def test_a_process_that_ends_while_it_is_looked_at_is_no_member_of_a_group(tmp_path: Path) -> None:
    """Pins: its stat was empty, and an IndexError ended the service."""
    for pid, stat in (
        ("10", ""),
        ("11", "11 (half"),
        ("12", "12 (a zombie) Z 1 7 7 0"),
        ("13", "13 (of another) S 1 8 8 0"),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(stat)
    (tmp_path / "14").mkdir()  # it ended before its stat was opened
    (tmp_path / "self").mkdir()
    assert not children.group_lives(7, tmp_path)
    (tmp_path / "15").mkdir()
    (tmp_path / "15" / "stat").write_text("15 (odd) Z (name) S 1 7 7 0")
    assert children.group_lives(7, tmp_path)


def test_a_group_lives_while_a_process_of_it_does() -> None:
    assert children.group_lives(os.getpgrp())
