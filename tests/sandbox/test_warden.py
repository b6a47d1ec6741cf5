"""What the warden does with a worker that lies, floods or leaves, and when it starts and stops."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gaoler.sandbox import warden as warden_module
from gaoler.sandbox import wire
from gaoler.sandbox.job import Failed, Job, TornDown
from tests.hosting import (
    LIMIT_S,
    MIB,
    LiveWarden,
    eventually,
    jails_on_host,
    job,
    shell,
    task,
)

Start = Callable[..., LiveWarden]


class Worker:
    """A worker that says what it likes."""

    def __init__(self, warden: LiveWarden) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(warden.spec.socket_path)

    def say(self, message: Any, descriptors: list[int] | None = None) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.sock, [data], descriptors or [])

    def is_cut_off(self) -> bool:
        try:
            return self.sock.recv(4096) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def worker(warden: LiveWarden) -> Iterator[Worker]:
    made = Worker(warden)
    yield made
    made.sock.close()


@pytest.fixture
def request_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT_S)
    with ours, theirs:
        yield ours, theirs


def _message(**changes: Any) -> dict[str, Any]:
    good = {
        "op": "run",
        "id": "x",
        "memory_bytes": 512 * MIB,
        "pids": 100,
        "hard_ns": time.monotonic_ns() + 10**10,
    }
    return {**good, **changes}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        {"op": "sudo"},
        b'{"op": ' + b"[" * 3000,
        _message(memory_bytes=1 << 50),
        _message(memory_bytes=0),
        _message(memory_bytes="1"),
        _message(pids=1 << 30),
        _message(pids=True),
        _message(hard_ns=1 << 62),
        _message(id=7),
        _message(id="x" * 300),
        {"op": "run"},
    ],
)
def test_a_worker_that_talks_nonsense_is_cut_off(
    warden: LiveWarden,
    worker: Worker,
    request_pair: tuple[socket.socket, socket.socket],
    message: Any,
) -> None:
    descriptor = wire.write_job(job(task("/bin/true")))
    worker.say(message, [request_pair[1].fileno(), descriptor])
    os.close(descriptor)
    assert worker.is_cut_off()
    assert warden.run_one(shell("echo still there")).stdout == b"still there\n"


def test_a_job_must_be_a_sealed_memfd_beside_a_stream_socket(
    warden: LiveWarden, request_pair: tuple[socket.socket, socket.socket]
) -> None:
    sealed = wire.write_job(job(task("/bin/true")))
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    null = os.open("/dev/null", os.O_RDWR)
    request = request_pair[1].fileno()
    for descriptors in (
        [],
        [request],
        [request, unsealed],
        [request, null],
        [null, sealed],
        [sealed, request],
        [request, sealed, null],
        [request, sealed] + [null] * 30,
    ):
        worker = Worker(warden)
        worker.say(_message(), descriptors)
        assert worker.is_cut_off(), descriptors
        worker.sock.close()
    for descriptor in (sealed, unsealed, null):
        os.close(descriptor)


def test_root_does_not_speak_to_whom_a_worker_has_connected(
    warden: LiveWarden, tmp_path: Path
) -> None:
    """A daemon that asks who speaks would take root's word for a task's."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "daemon"))
    os.seteuid(65534)  # a connection's other end is whose listen() it was
    listener.listen()
    os.seteuid(0)
    sealed = wire.write_job(job(shell("echo heard")))
    worker = Worker(warden)
    with listener, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "daemon"))
        worker.say(_message(), [sock.fileno(), sealed])
        assert worker.is_cut_off()
    os.close(sealed)
    worker.sock.close()


def test_a_socket_that_would_wait_for_its_last_bytes_does_not_hold_the_warden_up(
    warden: LiveWarden, worker: Worker
) -> None:
    assert warden.process is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lingering = socket.create_connection(listener.getsockname())
        lingering.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                lingering.send(bytes(65536))
        longer_than_the_test = struct.pack("ii", 1, 3600)
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, longer_than_the_test)
        os.kill(warden.process.pid, signal.SIGSTOP)  # so that the warden's close is the last
        worker.say({"op": "ping", "n": 1}, [lingering.fileno()])
        os.close(lingering.detach())
        os.kill(warden.process.pid, signal.SIGCONT)
        assert b"pong" in worker.sock.recv(4096)
        assert warden.run_one(shell("echo goes on")).stdout == b"goes on\n"


def test_a_descriptor_that_cannot_even_be_asked_about_does_not_end_the_warden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a process that a /proc hides from whoever has no CAP_SYS_PTRACE."""
    read_end, write_end = os.pipe()

    def cannot(*_: object) -> Any:
        raise OSError(errno.EIO, "as of a file system that somebody serves")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", cannot)
        warden_module._discard(read_end)
        patched.setattr(os, "close", cannot)
        warden_module._discard(write_end)
    os.close(write_end)
    with pytest.raises(OSError):
        os.fstat(read_end)


def test_a_warden_takes_a_few_connections_and_no_more(warden: LiveWarden) -> None:
    workers: list[Worker] = []
    cut_off = 0
    for _ in range(12):
        workers.append(Worker(warden))
        with contextlib.suppress(OSError):
            workers[-1].say({"op": "ping", "n": 1})
        cut_off += workers[-1].is_cut_off()
    for worker in workers:
        worker.sock.close()
    assert 0 < cut_off < len(workers)
    assert warden.run_one(shell("echo goes on")).stdout == b"goes on\n"


def test_a_run_where_descriptors_have_run_out_does_not_end_the_warden(
    start_warden: Start, request_pair: tuple[socket.socket, socket.socket]
) -> None:
    live = start_warden()
    live.run_one(shell("true"))
    assert live.process is not None
    pid = live.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    sealed = wire.write_job(job(shell("true")))
    for free in range(3, 12):
        worker = Worker(live)
        worker.say({"op": "ping", "n": 1})
        worker.sock.recv(4096)
        open_now = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + free, before[1]))
        worker.say(_message(), [request_pair[1].fileno(), sealed])
        worker.say({"op": "ping", "n": 2})
        with contextlib.suppress(OSError):
            worker.sock.recv(4096)
        assert live.process.poll() is None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        worker.sock.close()
    os.close(sealed)
    eventually(lambda: jails_on_host(live.instance) == [], "every jail is gone")
    assert live.run_one(shell("echo goes on")).stdout == b"goes on\n"


def test_a_workspace_of_no_size_is_not_one_without_end(warden: LiveWarden) -> None:
    failure = warden.submit(job(shell("true"), workspace_bytes=0)).wait().failure
    assert failure is not None
    assert "maxima" in failure.stage


def test_descriptors_that_were_sent_for_nothing_are_not_kept(
    warden: LiveWarden, request_pair: tuple[socket.socket, socket.socket]
) -> None:
    assert warden.process is not None
    folder = Path(f"/proc/{warden.process.pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(5):
        worker = Worker(warden)
        worker.say({"op": "ping", "n": 1}, [request_pair[1].fileno()] * 5)
        assert json.loads(worker.sock.recv(4096))["op"] == "pong"
        worker.sock.close()
    eventually(lambda: len(list(folder.iterdir())) <= before, "all are closed")


def test_a_job_beyond_the_maxima_is_refused_by_the_jailer(warden: LiveWarden) -> None:
    for bad in (
        job(task("/bin/true", memory_bytes=1 << 45)),
        job(task("/bin/true", profile="anything_v9")),
        job(*[task("/bin/true")] * 65),
        job([task("/bin/true")] * 9),
        job(task("/bin/true"), workspace_bytes=1 << 40),
        job(task("/bin/true"), output_bytes=1 << 40),
    ):
        failed = warden.submit(bad).wait().failure
        assert failed is not None
        assert failed.code == "sandbox_setup_failed"
        assert "maxima" in failed.stage


def test_a_worker_that_leaves_takes_its_jails_with_it(
    warden: LiveWarden, request_pair: tuple[socket.socket, socket.socket]
) -> None:
    worker = Worker(warden)
    descriptor = wire.write_job(job(task("/bin/sleep", "60")))
    worker.say(_message(), [request_pair[1].fileno(), descriptor])
    os.close(descriptor)
    eventually(lambda: jails_on_host(warden.instance), "the jail is there")
    worker.sock.close()
    eventually(lambda: not jails_on_host(warden.instance), "the jail has gone")
    request_pair[1].close()
    assert request_pair[0].recv(1) == b""


def test_a_jail_past_its_hard_deadline_is_torn_down_whatever_its_jailer_does(
    warden: LiveWarden, request_pair: tuple[socket.socket, socket.socket]
) -> None:
    worker = Worker(warden)
    descriptor = wire.write_job(job(task("/bin/sleep", "60")))
    soon = time.monotonic_ns() + 400_000_000
    worker.say(_message(hard_ns=soon), [request_pair[1].fileno(), descriptor])
    os.close(descriptor)
    request_pair[1].close()
    assert request_pair[0].recv(1) == b""
    assert time.monotonic_ns() >= soon
    worker.sock.close()


def test_cancel_ends_a_program_and_everything_it_started(warden: LiveWarden) -> None:
    watched = warden.submit(job(shell("sleep 60 & sleep 60 & sleep 60")))
    eventually(lambda: jails_on_host(warden.instance), "the jail is there")
    watched.cancel()
    watched.cancel()
    assert watched.wait().failure == Failed("cancelled", "cancel")
    assert watched.events[-1] == TornDown()


def test_when_no_uid_is_free_the_request_fails_and_the_next_one_runs(start_warden: Start) -> None:
    warden = start_warden(uid_range=(900_000, 900_000))
    running = warden.submit(job(task("/bin/sleep", "60")))
    eventually(lambda: jails_on_host(warden.instance), "the first jail is there")
    failed = warden.submit(job(task("/bin/true"))).wait().failure
    assert failed is not None
    assert (failed.code, failed.stage) == ("sandbox_setup_failed", "[Errno 0] no UID is free")
    running.cancel()
    running.wait()
    assert warden.run_one(task("/bin/true")).outcome == "completed"


def test_a_warden_that_died_is_replaced_and_what_it_left_is_swept(start_warden: Start) -> None:
    warden = start_warden()
    watched = [warden.submit(job(task("/bin/sleep", "60"))) for _ in range(3)]
    eventually(lambda: len(jails_on_host(warden.instance)) >= 3, "three jails are there")
    warden.kill()
    for each in watched:
        failure = each.wait().failure
        assert failure is not None
        assert failure.code == "internal_error"
    assert warden.submit(job(task("/bin/true"))).wait().failure is not None
    warden.start()
    assert jails_on_host(warden.instance) == []
    assert warden.run_one(task("/bin/true")).outcome == "completed"


def test_without_a_warden_a_job_is_unavailable_and_nothing_is_started(start_warden: Start) -> None:
    warden = start_warden()
    warden.kill()
    eventually(lambda: warden.client.ready() is not None, "the client notices")
    watched = warden.submit(job(task("/bin/true"))).wait()
    assert watched.failure is not None
    assert watched.failure.code == "unavailable"
    warden.start()


def test_many_jobs_at_once_do_not_mix_their_answers(warden: LiveWarden) -> None:
    jobs: list[Job] = [job(task("/bin/echo", str(number))) for number in range(24)]
    watched = [warden.submit(each) for each in jobs]
    for number, each in enumerate(watched):
        assert each.wait().results[0, 0].stdout == f"{number}\n".encode()


def test_a_cancel_at_any_moment_leaves_nothing(warden: LiveWarden) -> None:
    for delay_ms in range(0, 60, 3):
        watched = warden.submit(job(shell("echo x"), shell("echo y")))
        time.sleep(delay_ms / 1000)
        watched.cancel()
        watched.wait()
    eventually(lambda: not jails_on_host(warden.instance), "every jail has gone")
