"""What comes of frames that are cut, doubled, out of order or forged.

The client is told of one end and one teardown, and a request is answered with the true
results of all its tasks or not at all.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pykka
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaoler.actors.clock import VirtualClock
from gaoler.actors.controller import Controller
from gaoler.actors.messages import Message, RunFailed, RunFinished, RunTornDown, Start
from gaoler.sandbox import wire
from gaoler.sandbox.client import SandboxClient
from gaoler.sandbox.job import Failed, Finished, Job, TaskResult, TornDown
from tests.alterations.faults import FRAMES, HALF, MESSAGES, Fault
from tests.faults.breaking import (
    ABREAST,
    SHORT_BUDGET_MS,
    breaking,
    check_events,
    failure_of,
    ordinary,
)
from tests.hosting import LIMIT_S, LiveWarden, Watched, eventually, job, shell, task

TRUE = (
    (TaskResult("completed", exit_code=0, stdout=b"first"),),
    (TaskResult("completed", exit_code=3, stdout=b"second", stderr=b"err"),),
)
GOOD = [
    wire.frame(wire.TASK_DONE, wire.pack_result(0, 0, TRUE[0][0])),
    wire.frame(wire.TASK_DONE, wire.pack_result(1, 0, TRUE[1][0])),
    wire.json_frame(wire.FINISHED, {"exec_ns": 1}),
]
# What does not hide a result, forge one, or take away the end.
HARMLESS = {"last twice", "all twice", "garbage after all"}


def two_steps() -> Job:
    return job(task("/bin/true"), task("/bin/true"))


class FalseWarden:
    """Listens where a warden would, and says what the test wants it to."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "warden.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(LIMIT_S)
        self.client = SandboxClient(self.path, 1 << 20, 64, 0, 9)
        self.client.open()
        self.accept()

    def accept(self) -> None:
        self.worker, _ = self._listener.accept()
        self.worker.settimeout(LIMIT_S)
        eventually(lambda: self.client.ready() is None, "the client connects")

    def submit(self, wanted: Job) -> tuple[Watched, socket.socket, str]:
        """(what is heard, the jailer's end of the request's socket, the request's name)."""
        watched = Watched()
        watched.running = self.client.start(wanted, watched.hear)
        request, name = self.take_request()
        return watched, request, name

    def take_request(self) -> tuple[socket.socket, str]:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.worker, 4096, 2)
            message = json.loads(data)
            if message["op"] == "run":
                request, jobs = descriptors
                os.close(jobs)
                return socket.socket(fileno=request), message["id"]

    def say(self, datagram: bytes) -> None:
        self.worker.send(datagram)

    def answer(self, data: bytes) -> Watched:
        """A request that is answered so, and torn down."""
        watched, request, _ = self.submit(two_steps())
        with request:
            request.sendall(data)
        return watched.wait()

    def close(self) -> None:
        self.client.close()
        self.worker.close()
        self._listener.close()


@pytest.fixture
def false_warden(tmp_path: Path) -> Iterator[FalseWarden]:
    made = FalseWarden(tmp_path)
    yield made
    assert made.client._thread.is_alive(), "the client's thread has died"
    good = made.answer(b"".join(GOOD))
    assert [type(event) for event in good.events[-2:]] == [Finished, TornDown]
    made.close()


# --- the worker's side alone --------------------------------------------------------------


@pytest.mark.parametrize("how", FRAMES)
def test_the_listener_hears_of_one_end_whatever_the_frames(
    false_warden: FalseWarden, how: str
) -> None:
    check_events(false_warden.answer(FRAMES[how](GOOD)).events)


def test_frames_that_end_anywhere_are_a_failure(false_warden: FalseWarden) -> None:
    whole = b"".join(GOOD)
    for length in range(len(whole)):
        watched = false_warden.answer(whole[:length])
        check_events(watched.events)
        assert watched.failure == Failed("internal_error", "the sandbox died"), length


def test_any_bytes_make_one_end(tmp_path: Path) -> None:
    made = FalseWarden(tmp_path)
    whole = b"".join(GOOD)

    @settings(max_examples=150, deadline=None)
    @given(
        st.one_of(
            st.binary(max_size=200),
            st.tuples(st.integers(0, len(whole)), st.binary(min_size=1, max_size=12)).map(
                lambda pair: whole[: pair[0]] + pair[1] + whole[pair[0] + len(pair[1]) :]
            ),
        )
    )
    def answer(data: bytes) -> None:
        check_events(made.answer(data).events)

    answer()
    assert made.client._thread.is_alive()
    made.close()


def test_a_jailer_that_never_stops_talking_nonsense_is_hung_up_on_and_not_listened_to(
    false_warden: FalseWarden,
) -> None:
    watched, request, _ = false_warden.submit(two_steps())
    with request:
        request.settimeout(LIMIT_S)
        for _ in range(64):
            request.sendall(b"\xff" * (1 << 18))
        assert request.recv(1) == b"", "the client has not hung up"
        (kept,) = false_warden.client._requests
        assert kept.decoder.pending <= 1 << 19
    failed = failure_of(watched)
    assert failed.code == "internal_error"
    assert failed.stage.startswith("bad frame: a frame of kind 255")


# --- what the Controller makes of it ------------------------------------------------------


class _Deaf(pykka.ThreadingActor):
    """Stands in for Alarm."""

    use_daemon_thread = True

    def on_receive(self, message: object) -> None:
        pass


def controlled(sandbox: Any, wanted: Job, play: Callable[[], object]) -> list[Message]:
    """What a Controller reports of a job, once it has stopped."""
    reports: queue.SimpleQueue[Message] = queue.SimpleQueue()
    alarm = _Deaf.start()
    controller = Controller.start(
        ticket="t",
        job=wanted,
        sandbox=sandbox,
        clock=VirtualClock(),
        alarm=alarm,
        report=reports.put,
        slack_ms=0,
    )
    controller.tell(Start())
    play()
    assert controller.actor_stopped.wait(LIMIT_S)
    alarm.stop()
    return [reports.get() for _ in range(reports.qsize())]


@pytest.mark.parametrize("how", FRAMES)
def test_a_request_is_answered_with_the_true_results_or_not_at_all(
    false_warden: FalseWarden, how: str
) -> None:
    def play() -> None:
        request, _ = false_warden.take_request()
        with request:
            request.sendall(FRAMES[how](GOOD))

    end, gone = controlled(false_warden.client, two_steps(), play)
    if how in HARMLESS:
        assert isinstance(end, RunFinished)
        assert end.results == TRUE
    else:
        assert isinstance(end, RunFailed), end
        assert end.code == "internal_error"
    assert gone == RunTornDown("t")


@pytest.mark.parametrize("what", ["socketpair", "memfd_create", "dup", "write_job"])
def test_a_worker_that_is_out_of_something_fails_the_request_and_gives_it_back(
    false_warden: FalseWarden, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner: Any = {"socketpair": socket, "write_job": wire}.get(what, os)

    def refuse(*_: object, **__: object) -> None:
        if what == "write_job":
            raise MemoryError
        raise OSError(24, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, refuse)
        watched = Watched()
        running = false_warden.client.start(two_steps(), watched.hear)
        reports = controlled(false_warden.client, two_steps(), lambda: None)
    running.cancel()
    failed = failure_of(watched)
    number = 0 if what == "write_job" else 24
    assert (failed.code, failed.errno) == ("sandbox_setup_failed", number)
    assert failed.stage.startswith("make the job: ")
    assert reports == [RunFailed("t", failed.code, failed.stage, number), RunTornDown("t")]
    assert len(os.listdir("/proc/self/fd")) == before


# --- the warden's own words ---------------------------------------------------------------


@pytest.mark.parametrize("how", [how for how in MESSAGES if how not in ("missing", "twice")])
def test_a_warden_that_talks_nonsense_is_left_or_passed_over(
    false_warden: FalseWarden, how: str
) -> None:
    watched, request, _ = false_warden.submit(two_steps())
    for datagram in MESSAGES[how](b'{"op":"pong","n":1}'):
        false_warden.say(datagram[:4096])
    if how in ("another key", "no values", "other types"):
        request.sendall(b"".join(GOOD))
        request.close()
        assert watched.wait().failure is None
        return
    failed = failure_of(watched)
    assert (failed.code, failed.stage) == ("internal_error", "the sandbox died")
    request.close()
    assert false_warden.worker.recv(4096)  # the run's ping, or the end of it
    false_warden.worker.close()
    false_warden.accept()


@pytest.mark.parametrize(
    "message",
    [
        {"op": "pong"},
        {"op": "pong", "n": "1", "jails": []},
        {"op": "pong", "n": 10**30},
        {"op": ["pong"]},
        {"op": "quarantined"},
        {"op": "quarantined", "id": ["x"]},
        {"op": "quarantined", "id": "another"},
        {"op": "released", "id": "another"},
        {"op": "released", "id": {}},
    ],
)
def test_what_the_warden_says_of_nobody_concerns_nobody(
    false_warden: FalseWarden, message: dict[str, Any]
) -> None:
    watched, request, _ = false_warden.submit(two_steps())
    false_warden.say(json.dumps(message).encode())
    request.sendall(b"".join(GOOD))
    request.close()
    assert watched.wait().events[-1] == TornDown()
    assert watched.failure is None


def test_quarantine_and_release_said_twice_count_once(false_warden: FalseWarden) -> None:
    watched, request, name = false_warden.submit(two_steps())
    for _ in range(2):
        false_warden.say(json.dumps({"op": "quarantined", "id": name}).encode())
    request.close()
    eventually(lambda: TornDown(quarantined=True) in watched.events, "it is in quarantine")
    for _ in range(2):
        false_warden.say(json.dumps({"op": "released", "id": name}).encode())
    watched.wait()
    false_warden.answer(b"".join(GOOD))
    assert watched.events == [
        Failed("internal_error", "the sandbox died"),
        TornDown(quarantined=True),
        TornDown(),
    ]


def test_a_pong_that_is_garbled_still_answers_with_what_can_be_read(
    false_warden: FalseWarden,
) -> None:
    got: list[Any] = []
    came = threading.Event()

    def take(counts: Any) -> None:
        got.append(counts)
        came.set()

    false_warden.client.ping(take)
    while True:
        message = json.loads(false_warden.worker.recv(4096))
        false_warden.say(
            json.dumps({"op": "pong", "n": message["n"], "jails": "x", "uids_free": 3}).encode()
        )
        if came.wait(0.05):
            break
    assert got == [{"uids_free": 3}]


# --- the whole chain ----------------------------------------------------------------------


def _true(watched: Watched) -> bool:
    return {place: result.stdout for place, result in watched.results.items()} == {
        (0, 0): b"one\n",
        (1, 0): b"two\n",
    }


def _in_batches(
    live: LiveWarden, faults: list[Fault], wanted: Callable[[], Job]
) -> Iterator[tuple[Fault, Watched]]:
    for start in range(0, len(faults), ABREAST):
        batch = faults[start : start + ABREAST]
        yield from [(fault, live.submit(breaking(fault, wanted()))) for fault in batch]


@pytest.mark.parametrize("part", ["jailer", "supervisor"])
def test_frames_of_ours_that_are_garbled_never_make_a_wrong_answer(
    breakable: LiveWarden, part: str
) -> None:
    def wanted() -> Job:
        return job(shell("echo one"), shell("echo two"), budget_ms=SHORT_BUDGET_MS)

    # Of a task's one frame that forges nothing: a supervisor that makes a result up is believed.
    hows = [how for how in FRAMES if (part, how) != ("supervisor", "a forged one after")]
    faults = [Fault(part, "frames", how) for how in hows]
    wrong = []
    for fault, watched in _in_batches(breakable, faults, wanted):
        watched.wait()
        check_events(watched.events)
        failed = watched.failure
        if failed is None:
            # The Controller of the test above judges what the worker gets; here it is the
            # jailer that must not be taken in.
            if part == "supervisor" and not _true(watched):
                wrong.append((fault.how, watched.events))
        elif failed.code != "internal_error" or not failed.stage:
            wrong.append((fault.how, watched.events))
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.parametrize("part", ["jailer", "supervisor"])
def test_what_is_said_after_half_a_result_does_not_pass_for_its_end(
    breakable: LiveWarden, part: str
) -> None:
    wanted = job(shell("printf 0123456789%.0s $(seq 100)"))
    failed = failure_of(breakable.submit(breaking(Fault(part, "frames", HALF), wanted)))
    assert failed.code == "internal_error"


# --- the task's words before exec ---------------------------------------------------------


def test_words_of_the_parked_process_that_are_garbled_never_make_a_wrong_result(
    breakable: LiveWarden,
) -> None:
    """`missing` ones leave somebody waiting: the hard deadline ends that."""
    tasks = {
        "parked": ordinary(),
        "exec_ns": ordinary(),
        "refused": task("/bin/true", working_dir="none"),
        "exec_failed": task("/none"),
    }
    faults = [Fault("task", f"say {key}", how) for key in tasks for how in MESSAGES]
    wrong = []
    for start in range(0, len(faults), 3 * ABREAST):
        batch = []
        for fault in faults[start : start + 3 * ABREAST]:
            key = fault.point.removeprefix("say ")
            wanted = job(tasks[key], budget_ms=SHORT_BUDGET_MS)
            batch.append((fault, key, breakable.submit(breaking(fault, wanted))))
        for fault, key, watched in batch:
            watched.wait()
            check_events(watched.events)
            if watched.failure is None and not _explained(key, watched.results[0, 0]):
                wrong.append((fault, watched.events))
            if watched.failure is not None and key == "parked":
                code = watched.failure.code
                if code != "sandbox_setup_failed" and fault.how not in ("missing", "twice"):
                    wrong.append((fault, watched.events))
    assert wrong == [], "\n".join(map(str, wrong))


def _explained(key: str, result: TaskResult) -> bool:
    """Whether a result is what such a task ends with."""
    if key == "refused":
        return (result.outcome, result.reason) == ("setup_failed", "working_dir")
    if key == "exec_failed":
        return result.exit_code == 127 and result.reason in (None, "command_not_found")
    return result.stdout == b"laid\ngiven\nout\n" and result.exit_code == 0
