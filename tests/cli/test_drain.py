"""SIGUSR2 to `gaoler serve`, and `gaoler drain`, over doubles; whole services are in tests/live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaoler.cli import drain_others, instances
from gaoler.cli.main import main
from gaoler.config.settings import Settings
from tests.doubles import WARDEN, Served
from tests.hosting import LIMIT_S, eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the service is started by root")

# A web process that, once it is asked to drain, answers 503 and says so in `asked`; every
# connection before that gets its pid, with the first one after that it has drained.
WEB = """
import os, select, socket, sys
handed, line, public, internal = map(int, sys.argv[1:])
server = socket.socket(fileno=public)

def asked():
    if not select.select([line], [], [], 0)[0]:
        return False
    with open(os.environ["FOLDER"] + "/state/asked", "a") as file:
        file.write("%d\\n" % os.getpid())
    return True

draining = False
while True:
    select.select([server] if draining else [server, line], [], [])
    draining = draining or asked()
    try:
        connection, _ = server.accept()
    except BlockingIOError:
        continue
    connection.setblocking(True)
    connection.recv(65536)
    status = b"503 Draining" if draining else b"200 OK"
    body = str(os.getpid()).encode()
    connection.sendall(b"HTTP/1.1 " + status + b"\\r\\nConnection: close\\r\\n\\r\\n" + body)
    connection.close()
    if draining:
        os.write(line, b"d")
"""
DRAINS_AT_ONCE = """
import os, select, sys
handed, line, public, internal = map(int, sys.argv[1:])
select.select([line], [], [])
os.write(line, b"d")
select.select([], [], [])
"""
# The first one ends as it is asked, the next one finds nothing in flight.
DIES_ONCE = """
import os, select, sys
handed, line, public, internal = map(int, sys.argv[1:])
select.select([line], [], [])
try:
    os.mkdir(os.environ["FOLDER"] + "/state/died")
    os._exit(70)
except FileExistsError:
    os.write(line, b"d")
select.select([], [], [])
"""
# Has drained, as it says itself, long before anybody asks.
SAYS_IT_UNASKED = WEB.replace("draining = False", 'draining = False\nos.write(line, b"d")')


def ready(folder: Path, web: str = WEB, patch: str = "") -> Served:
    return Served(folder, web=web, patch=patch).ready()


def ask(service: Served) -> None:
    service.process.send_signal(signal.SIGUSR2)


def await_asked(folder: Path) -> None:
    eventually((folder / "state" / "asked").exists, "the web process was asked")


def events(said: list[str]) -> list[str]:
    return [json.loads(line)["event"] for line in said]


# --- the signal ---------------------------------------------------------------------------


@as_root
def test_it_ends_once_the_worker_has_drained_and_not_before(folder: Path) -> None:
    service = ready(folder)
    before = service.children()
    ask(service)
    await_asked(folder)
    ask(service)
    assert service.process.poll() is None
    assert int(service.answer()) in before
    assert service.ended() == (0, [])
    assert [pid for pid in before if Path(f"/proc/{pid}").exists()] == []


@as_root
def test_sigterm_ends_a_drain_at_once(folder: Path) -> None:
    service = ready(folder)
    ask(service)
    await_asked(folder)
    assert service.stop() == (0, [])


@as_root
def test_a_web_process_that_dies_is_followed_by_one_that_drains(folder: Path) -> None:
    patch = "serve.announcement.is_healthy = lambda settings: True"
    service = ready(folder, DIES_ONCE, patch)
    ask(service)
    code, said = service.ended()
    assert (code, events(said)) == (0, ["child_died", "child_started"])


@as_root
def test_a_drain_that_nothing_comes_of_ends_when_all_should_have_ended(folder: Path) -> None:
    service = ready(folder, patch="drain_line.limit_s = lambda settings: 0.05")
    ask(service)
    code, said = service.ended()
    assert (code, events(said)) == (0, ["drain_overdue"])


@as_root
def test_a_worker_cannot_end_the_service_unasked(folder: Path) -> None:
    service = ready(folder, SAYS_IT_UNASKED)
    os.kill(service.process.pid, signal.SIGCHLD)  # something that wakes it up
    assert service.answer() == service.answer()
    assert service.process.poll() is None
    ask(service)
    assert service.ended() == (0, [])


@as_root
@pytest.mark.parametrize("moment", ["before the locks", "while the warden starts"])
def test_a_signal_that_comes_during_the_start_is_heeded_when_it_can_be(
    folder: Path, moment: str
) -> None:
    first = "import os, signal\nos.kill({}, signal.SIGUSR2)\n"
    if moment == "before the locks":
        patch, warden = f"layers.survey = lambda: os.kill({'os.getpid()'}, 12) or []", WARDEN
    else:
        patch, warden = "", first.format("os.getppid()") + WARDEN
    code, said = Served(folder, warden=warden, web=DRAINS_AT_ONCE, patch=patch).ended()
    assert (code, said) == (0, [])


@as_root
def test_the_signal_does_no_harm_to_the_others(folder: Path) -> None:
    """Pins: gunicorn started itself anew, and the warden died of it."""
    service = ready(folder)
    before = service.children()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGUSR2)
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked >> (signal.SIGUSR2 - 1) & 1
    assert int(service.answer()) in before
    assert service.children() == before
    assert service.stop() == (0, [])


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def draining(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A service that drains when asked, and `gaoler drain` has its settings."""
    service = ready(folder)
    for name in ("STATE_DIR", "RUNTIME_DIR"):
        monkeypatch.setenv(name, service.environment[name])
    yield service
    if service.process.poll() is None:
        service.stop()


@as_root
def test_drain_waits_for_the_end(draining: Served) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "gaoler.cli.main", "drain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    await_asked(draining.folder)
    assert command.poll() is None
    draining.answer()
    out, err = command.communicate(timeout=LIMIT_S)
    assert (command.returncode, err) == (0, "")
    assert out == "drained: what it had taken is done, and it has ended\n"
    assert draining.ended() == (0, [])


@as_root
def test_drain_may_only_ask(draining: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "--no-wait"]) == 0
    assert capsys.readouterr().out == "asked to drain: it ends once what it has taken is done\n"
    await_asked(draining.folder)
    assert draining.process.poll() is None


@as_root
def test_drain_gives_up_waiting_and_the_service_goes_on_draining(
    draining: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", "--timeout-s", "0.01"]) == 1
    said = capsys.readouterr().err
    assert said == "gaoler drain: still running after 0.01 s; it goes on\n"
    await_asked(draining.folder)
    draining.answer()
    assert draining.ended() == (0, [])


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
def test_a_wrong_time_is_bad_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["drain", f"--timeout-s={text}"])
    assert f"--timeout-s: allowed is 0 to 1000000, not '{text}'" in capsys.readouterr().err


@as_root
def test_a_service_of_somebody_else_is_not_ours_to_drain(draining: Served) -> None:
    stranger = ("setpriv", "--reuid", "bin", "--regid", "bin", "--clear-groups")
    command = (sys.executable, "-I", "-m", "gaoler.cli.main", "drain")
    done = subprocess.run(
        [*stranger, *command], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        4,
        "gaoler drain: the service is another user's; run: sudo gaoler drain\n",
    )
    assert draining.process.poll() is None


# --- finding it ---------------------------------------------------------------------------


@as_root
def test_nothing_runs_before_the_start_and_after_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("RUNTIME_DIR", str(folder / "run"))
    assert main(["drain"]) == 4
    ready(folder).stop()
    assert len(list((folder / "run").glob("*.lock"))) == 1
    assert main(["drain"]) == 4
    where = f"STATE_DIR={folder}/state and RUNTIME_DIR={folder}/run"
    # What follows on the line are others, such as this host may have.
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith(f"gaoler drain: no gaoler with {where} runs on this host")
        assert str(folder) not in line.removeprefix(f"gaoler drain: no gaoler with {where}")


@as_root
def test_where_another_runs_it_is_named_with_what_drains_it(
    draining: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, pid = draining.folder, draining.process.pid
    monkeypatch.setenv("STATE_DIR", str(folder / "elsewhere"))
    assert main(["drain"]) == 4
    told = f"process {pid} with STATE_DIR={folder}/state RUNTIME_DIR={folder}/run"
    assert told in capsys.readouterr().err
    assert draining.process.poll() is None


def test_of_one_whose_settings_cannot_be_seen_the_folder_is_named(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    pid = bystander.pid
    (tmp_path / "gaoler-1.lock").write_text(f"\n{pid} {started(pid)}\n")
    (tmp_path / "gaoler-2.lock").write_text(f"\n{pid} {started(pid) - 1}\n")
    told = drain_others.text(Settings(runtime_dir=tmp_path))
    assert f"process {pid} with {tmp_path}/gaoler-1" in told
    assert "gaoler-2" not in told


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no signal is meant for."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def claim(folder: Path, text: str) -> str:
    """A runtime folder whose lock says that; its name."""
    (folder / "one.lock").write_text(text)
    return str(folder / "one")


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_process_is_known_by_its_start(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    pid = bystander.pid
    found = instances.find(claim(tmp_path, f"1000-1999\n{pid} {started(pid)}\n"))
    assert found is not None
    os.close(found)
    assert instances.find(claim(tmp_path, f"1000-1999\n{pid} {started(pid) - 1}\n")) is None


def test_a_process_that_has_ended_runs_no_more(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    text = f"\n{bystander.pid} {started(bystander.pid)}\n"
    bystander.kill()
    os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
    assert instances.find(claim(tmp_path, text)) is None  # a zombie
    bystander.wait(LIMIT_S)
    assert instances.find(claim(tmp_path, text)) is None


@as_root
def test_a_lock_of_one_user_does_not_name_a_process_of_another(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """Else whoever writes such a file could have root signal what they may not."""
    runtime_dir = claim(tmp_path, f"\n{bystander.pid} {started(bystander.pid)}\n")
    os.chown(f"{runtime_dir}.lock", 12_345, 12_345)
    assert instances.find(runtime_dir) is None


@pytest.mark.parametrize(
    "text",
    ["", "1000-1999", "1000-1999\n", "\n1\n", "\na b\n", "\n1 2 3\n", "\n0 1\n", f"\n{9**40} 1\n"],
)
def test_a_lock_that_names_no_process_finds_none(tmp_path: Path, text: str) -> None:
    assert instances.find(claim(tmp_path, text)) is None


def test_a_lock_that_is_no_file_of_its_own_finds_none(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    claim(tmp_path, f"\n{bystander.pid} {started(bystander.pid)}\n")
    (tmp_path / "other.lock").symlink_to("one.lock")
    assert instances.find(str(tmp_path / "other")) is None
    os.mkfifo(tmp_path / "pipe.lock")
    assert instances.find(str(tmp_path / "pipe")) is None
