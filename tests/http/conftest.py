"""Actors that answer as a test tells them to, an ASGI client without sockets, and a real
gunicorn on free loopback ports for what only sockets can show."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gaoler.actors.messages import Answer, Refusal, Reply, Submit
from gaoler.config.settings import Settings
from gaoler.http.app import Front, build_app
from gaoler.http.context import SCOPE_KEY
from gaoler.http.routes import Services
from gaoler.sandbox.job import TaskResult

LIMIT_S = 20.0
EXECUTE = "/api/v1/execute"


def completed(submit: Submit) -> Answer:
    """Every task printed its own command and exited with 0."""
    results = tuple(
        tuple(TaskResult("completed", exit_code=0, stdout=task.cmd.encode()) for task in step.tasks)
        for step in submit.job.steps
    )
    return Answer(results, queued_ms=1, setup_ms=2, run_ms=3, budget_ms=submit.budget_ms)


@dataclass
class FakeActors:
    """Fits `gaoler.http.bridge.Actors`.  Replies come from another thread, as the real ones do."""

    answer: Callable[[Submit], Reply | None] = completed  # None: no reply before a cancel
    picture: dict[str, object] | None = None
    alive: dict[str, bool] = field(default_factory=lambda: {"Admission": True})
    submitted: list[Submit] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    has_submit: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def submit(self, submit: Submit) -> None:
        self.submitted.append(submit)
        reply = self.answer(submit)
        if reply is not None:
            self._from_a_thread(submit.reply, reply)
        self.has_submit.set()

    def cancel(self, ticket: str, code: str = "cancelled") -> None:
        self.cancelled.append(ticket)
        for submit in self.submitted:
            if submit.ticket == ticket:
                self._from_a_thread(submit.reply, Refusal(code, "cancelled"))

    def inspect(self, reply: Callable[[dict[str, object]], None], rows: int) -> bool:
        self.rows = rows
        if self.picture is None:
            return False
        self._from_a_thread(reply, self.picture)
        return True

    def ping_all(self, timeout_s: float = 1.0) -> dict[str, bool]:
        del timeout_s
        return self.alive

    def _from_a_thread(self, call: Callable[[Any], None], value: object) -> None:
        thread = threading.Thread(target=call, args=(value,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


WARDEN = {"jails": 0, "uids_free": 100, "quarantined": 0}


def calm_warden(reply: Callable[[Mapping[str, int]], None]) -> bool:
    """A warden that has nothing to do."""
    reply(WARDEN)
    return True


def fake_services(actors: FakeActors, **more: Any) -> Services:
    healthy = {"actors": actors, "ready": lambda: None, "ask_warden": calm_warden}
    return Services(**{**healthy, **more})


@dataclass(frozen=True)
class Answered:
    """What came back; `status` 0: nothing."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self) -> tuple[int, str]:
        """Status and code, once it is sure that this is a whole problem+json."""
        assert self.headers["content-type"] == "application/problem+json"
        assert {"title", "status", "detail", "code", "request_id"} <= set(self.json)
        assert self.json["status"] == self.status
        assert self.json["request_id"] == self.headers["x-request-id"]
        return self.status, self.json["code"]


class Client:
    """Calls an ASGI application as gunicorn would."""

    def __init__(self, front: Front, port: int) -> None:
        self._front = front
        self._port = port
        self.pieces_read = 0
        self.pieces_before_answer = 0  # of the last exchange

    def request(
        self,
        method: str,
        path: str,
        pieces: Sequence[bytes] = (),
        headers: Mapping[str, str] | None = None,
        *,
        leaves: bool = False,
        never_ends: bool = False,
    ) -> Answered:
        """One exchange; `leaves`: the client goes away after the last piece of its body."""
        coroutine = self.exchange(
            method, path, pieces, headers, leaves=leaves, never_ends=never_ends
        )
        return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))

    def execute(self, body: object, headers: Mapping[str, str] | None = None) -> Answered:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", EXECUTE, [data], headers)

    async def exchange(
        self,
        method: str,
        path: str,
        pieces: Sequence[bytes] = (),
        headers: Mapping[str, str] | None = None,
        *,
        leaves: bool = False,
        never_ends: bool = False,
        left: asyncio.Event | None = None,
    ) -> Answered:
        given = {"content-type": "application/json", **(headers or {})}
        sent: list[Mapping[str, Any]] = []
        read_earlier = self.pieces_read
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode("latin-1", "replace"),
            "query_string": path.partition("?")[2].encode("latin-1", "replace"),
            "root_path": "",
            "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in given.items()],
            "server": ("127.0.0.1", self._port),
            "client": ("127.0.0.1", 1),
        }
        receive = self._receiver(list(pieces), leaves, never_ends, left)

        async def send(message: Mapping[str, Any]) -> None:
            if not sent:
                self.pieces_before_answer = self.pieces_read - read_earlier
            sent.append(message)

        await self._front(scope, receive, send)
        assert SCOPE_KEY in scope
        return _answered(sent)

    def _receiver(
        self, pieces: list[bytes], leaves: bool, never_ends: bool, left: asyncio.Event | None
    ) -> Callable[[], Awaitable[Mapping[str, Any]]]:
        ended = False

        async def receive() -> Mapping[str, Any]:
            nonlocal ended
            if pieces or not (ended or leaves or never_ends):
                self.pieces_read += 1
                piece = pieces.pop(0) if pieces else b""
                ended = not pieces and not never_ends
                return {"type": "http.request", "body": piece, "more_body": not ended}
            if not leaves:
                await (left or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        return receive


def _answered(sent: list[Mapping[str, Any]]) -> Answered:
    if not sent:
        return Answered(0, {}, b"")
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answered(sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]))


@pytest.fixture
def actors() -> Iterator[FakeActors]:
    fake = FakeActors()
    yield fake
    fake.join()


@pytest.fixture
def make_client(actors: FakeActors) -> Callable[..., Client]:
    """A client of an application with other settings than the default, or other services."""

    def make(
        services: Mapping[str, Any] | None = None, internal: bool = False, **settings: Any
    ) -> Client:
        values = Settings(**{"max_concurrency": 8, "tasks_memory_bytes": 2**35, **settings})
        front = build_app(values, fake_services(actors, **(services or {})))
        return Client(front, (values.internal_bind if internal else values.bind)[1])

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


# --- a real server -------------------------------------------------------------------------


class Server:
    """gunicorn in a process of its own; its log lines come as they are written."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port, self.internal_port = (each.getsockname()[1] for each in sockets)
        self.log: list[dict[str, Any]] = []
        self._news = threading.Condition()
        arguments = [json.dumps(dict(settings))]
        for each in sockets:
            arguments += [str(each.fileno()), str(each.getsockname()[1])]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("served.py")), *arguments],
            stdout=subprocess.PIPE,
            pass_fds=[each.fileno() for each in sockets],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        for each in sockets:
            each.close()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.log.append(json.loads(line))
                self._news.notify_all()

    def wait_for(self, **fields: object) -> dict[str, Any]:
        """The first log line with these fields."""

        def found() -> dict[str, Any] | None:
            fits = (line for line in self.log if fields.items() <= line.items())
            return next(fits, None)

        with self._news:
            line = self._news.wait_for(found, LIMIT_S)
        assert line is not None, self.log
        return line

    def connect(self, *, internal: bool = False) -> socket.socket:
        port = self.internal_port if internal else self.port
        return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert not self._reader.is_alive()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Servers of a test's own."""
    servers: list[Server] = []

    def make(**settings: Any) -> Server:
        server = Server(settings)
        servers.append(server)
        server.wait_for(event="serving")
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def served() -> Iterator[Server]:
    """One server for all tests that do not need settings of their own."""
    server = Server({"request_body_timeout_ms": 400, "execute_body_limit_bytes": 2**20})
    server.wait_for(event="serving")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def guarded() -> Iterator[Server]:
    """A server that wants a key."""
    server = Server({"api_keys": ["k" * 32], "execute_body_limit_bytes": 2**20})
    server.wait_for(event="serving")
    yield server
    server.stop()
