"""`RUNNER_MODE=stub`: a service that runs nothing, started by root or by anybody."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosting import LIMIT_S, LiveService

NOBODYS = "bin"  # a user of every Debian that nothing runs as
SETPRIV = ("setpriv", "--reuid", NOBODYS, "--regid", NOBODYS, "--clear-groups", "--")
FALSE = {"cmd": "/bin/false", "collect": ["out"]}
Start = Callable[..., "Stub"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Stub(LiveService):
    """A stub in a folder of its own.  `user`: who starts it, where that is not us."""

    def __init__(self, folder: Path, user: str = "", **environment: str) -> None:
        folder.mkdir()
        wrapper = SETPRIV if user else ()
        super().__init__(folder, wrapper, RUNNER_MODE="stub", **environment)
        if user or os.geteuid() != 0:
            self.settings.state_dir.rmdir()  # nobody made it for them
        if user:
            shutil.chown(folder, user)

    def log(self) -> str:
        return self.log_path.read_text()


@pytest.fixture
def start_stub(tmp_path: Path) -> Iterator[Start]:
    stubs: list[Stub] = []
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)

    def start(user: str = "", **environment: str) -> Stub:
        stubs.append(Stub(tmp_path / f"stub-{len(stubs)}", user, **environment))
        stubs[-1].start()
        return stubs[-1]

    yield start
    for stub in stubs:
        assert stub.stop() == 0


def _status(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


def test_it_takes_a_request_the_whole_way_and_runs_nothing(start_stub: Start) -> None:
    stub = start_stub()
    answer = stub.execute(FALSE, [FALSE, FALSE], stop_on_failure=True, unknown=1)
    assert (answer.status, answer.body["ignored_fields"]) == (200, ["unknown"])
    one, (left, right) = answer.body["results"]
    assert one == left == right
    assert one == {
        "outcome": "completed",
        "reason": None,
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "stdout": "",
        "stderr": "",
        "stdout_truncated": False,
        "stderr_truncated": False,
        "files": {"out": {"error": "missing"}},
        "cached": False,
        "stats": dict.fromkeys(one["stats"], 0),
        "stub": True,
    }
    assert stub.is_idle()


def test_it_refuses_what_the_service_refuses(start_stub: Start) -> None:
    stub = start_stub(API_KEYS="k" * 16, MAX_PARALLEL_TASKS="8")
    key = {"X-API-Key": "k" * 16}
    for body, headers, expected in (
        ({"steps": [FALSE]}, {}, (401, "unauthorized")),
        ({"steps": []}, key, (400, "invalid_request")),
        ({"steps": [[FALSE] * 3]}, key, (422, "limits_exceeded")),
        ({"steps": [{**FALSE, "limits": {"pids": 10**9}}]}, key, (422, "limits_exceeded")),
        ({"steps": [{**FALSE, "profile": "own_v1"}]}, key, (422, "profile_not_allowed")),
    ):
        answer = stub.request(body=body, headers=headers)
        assert (answer.status, answer.body["code"]) == expected
    assert stub.request(body={"steps": [FALSE]}, headers=key).status == 200


def test_it_says_that_it_is_one_wherever_one_may_look(start_stub: Start) -> None:
    stub = start_stub()
    health = stub.request("GET", "/api/v1/health")
    assert (health.status, health.body) == (200, {"status": "ok", "stub": True})
    internal = stub.request("GET", "/internal/health", internal=True)
    assert internal.status == 200
    assert internal.body["stub"] is True
    assert internal.body["warden"] == "stub: nothing is run"
    assert internal.body["layers"] == {"sandbox": "stub: nothing is run"}
    first = stub.log().splitlines()[0]
    assert first.startswith("gaoler serve: RUNNER_MODE=stub: nothing is run; ")


def test_it_starts_no_warden(start_stub: Start) -> None:
    assert set(start_stub().pids()) == {"serve", "arbiter", "worker"}


@as_root
def test_started_by_root_it_serves_as_the_service_user(start_stub: Start) -> None:
    stub = start_stub()
    parts = stub.pids()
    user = str(stub.settings.state_dir.stat().st_uid)
    for pid in parts["arbiter"] + parts["worker"]:
        assert _status(pid, "Uid") == [user] * 4
        assert _status(pid, "CapBnd") == ["0" * 16]
        assert _status(pid, "NoNewPrivs") == ["1"]


@as_root
def test_anybody_can_start_one_and_drain_it(start_stub: Start) -> None:
    stub = start_stub(NOBODYS)
    assert stub.execute(FALSE).body["results"][0]["stub"] is True
    processes = [pid for pids in stub.pids().values() for pid in pids]
    for pid in processes:
        assert _status(pid, "CapEff") == ["0" * 16]
        assert "0" not in _status(pid, "Uid")
    assert stub.settings.state_dir.stat().st_mode & 0o777 == 0o750
    drained = subprocess.run(
        [*SETPRIV, sys.executable, "-m", "gaoler.cli.main", "drain"],
        env=stub.environment,
        check=False,
        timeout=LIMIT_S,
    )
    assert drained.returncode == 0
    assert stub.process is not None
    assert stub.process.wait(LIMIT_S) == 0
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists()] == []


def test_it_drains_though_a_client_keeps_its_connection(start_stub: Start) -> None:
    stub = start_stub(SHUTDOWN_TIMEOUT_MS="600000")
    assert stub.process is not None
    with socket.create_connection(("127.0.0.1", stub.port), LIMIT_S) as idle:
        idle.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200")
        stub.process.send_signal(signal.SIGUSR2)
        assert stub.process.wait(LIMIT_S) == 0
        assert idle.recv(1) == b""


def test_a_program_that_is_sent_to_it_is_not_said_to_have_run(
    start_stub: Start, tmp_path: Path
) -> None:
    stub = start_stub()
    program = tmp_path / "program.py"
    program.write_text("print(42)")
    done = subprocess.run(
        [sys.executable, "-m", "gaoler.cli.main", "run", str(program)],
        env={"PATH": os.environ["PATH"], "GAOLER_URL": f"http://127.0.0.1:{stub.port}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (121, "")
    assert done.stderr.endswith("unavailable: the service is a stub, it runs nothing\n")


@pytest.mark.parametrize("setting", ["STATE_DIR", "RUNTIME_DIR"])
def test_a_folder_that_cannot_be_had_stops_the_start(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").touch()
    stub = Stub(tmp_path / "stub")
    done = subprocess.run(
        [sys.executable, "-m", "gaoler.cli.main", "serve"],
        env={**stub.environment, setting: str(tmp_path / "file" / "folder")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith(
        f"gaoler serve: {setting}={tmp_path}/file/folder"
    )


@pytest.mark.parametrize("setting", ["BIND", "INTERNAL_BIND"])
def test_one_that_others_could_take_for_a_service_is_refused(tmp_path: Path, setting: str) -> None:
    stub = Stub(tmp_path / "stub", API_KEYS="k" * 16)
    done = subprocess.run(
        [sys.executable, "-m", "gaoler.cli.main", "serve"],
        env={**stub.environment, setting: "0.0.0.0:18300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"gaoler: {setting}=0.0.0.0:18300: allowed is a loopback address with "
        "RUNNER_MODE=stub, which runs nothing\n",
    )
