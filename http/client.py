"""The client of a Gaoler service, sync and async: docs/client.md.

    with Client("http://127.0.0.1:8300") as client:
        answer = client.execute(Request([Task("python3", ["-c", "print(6 * 7)"])]))
    print(answer.results[0].stdout)

A request that could not be answered raises one of the classes below RunnerError.  Nothing is
asked twice, unless `retries` says so; then only what was refused for want of room.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
import httpx

from gaoler.http.client_address import AddressError, Service, service_at
from gaoler.http.client_answers import (
    Answer,
    CollectedFile,
    Result,
    Stats,
    StepResult,
    Timing,
    read_execute,
    read_health,
)
from gaoler.http.client_backoff import Attempts, Backoff, backoff
from gaoler.http.client_body import body
from gaoler.http.client_errors import (
    AnswerGarbled,
    NotConnected,
    Queue,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerFailed,
    RunnerUnavailable,
)
from gaoler.http.client_exchange import Call, async_http, exchange, exchange_async, sync_http
from gaoler.http.client_times import USUAL, Times, budget_ms, patience_ms
from gaoler.http.client_types import (
    Collect,
    Content,
    File,
    Limits,
    Pipe,
    Request,
    Step,
    Stored,
    Task,
    Tasks,
)

__all__ = [
    "AddressError",
    "Answer",
    "AnswerGarbled",
    "AsyncClient",
    "Backoff",
    "Client",
    "Collect",
    "CollectedFile",
    "Content",
    "File",
    "Limits",
    "NotConnected",
    "Pipe",
    "Queue",
    "Request",
    "RequestRefused",
    "Result",
    "RunnerBusy",
    "RunnerError",
    "RunnerFailed",
    "RunnerUnavailable",
    "Stats",
    "Step",
    "StepResult",
    "Stored",
    "Task",
    "Tasks",
    "Times",
    "Timing",
    "budget_ms",
    "patience_ms",
]

EXECUTE = "/api/v1/execute"
HEALTH = "/api/v1/health"

CONNECT_TIMEOUT_MS = 10_000
HEALTH_TIMEOUT_MS = 10_000

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class _Caller:
    """What both clients know and how they spell a call; no input or output."""

    def __init__(
        self,
        url: str,
        key: str | None,
        retries: int | Backoff,
        times: Times,
        connect_timeout_ms: int,
    ) -> None:
        self._service: Service = service_at(url, key)
        self._backoff = backoff(retries)
        self._times = times
        self._connect_s = connect_timeout_ms / 1_000

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._service.url}>"

    @property
    def address(self) -> str:
        """HOST or HOST:PORT, for people."""
        return self._service.address

    def _execute(self, request: Request, request_id: str | None) -> Call:
        if request_id is not None and _REQUEST_ID.fullmatch(request_id) is None:
            raise ValueError(f"request_id {request_id!a}: allowed is 1 to 128 of A-Za-z0-9._-")
        return Call(
            service=self._service,
            method="POST",
            route=EXECUTE,
            wait_s=patience_ms(request, self._times) / 1_000,
            connect_s=self._connect_s,
            body=body(request, budget_ms(request, self._times)),
            request_id=request_id,
        )

    def _health(self) -> Call:
        wait_s = HEALTH_TIMEOUT_MS / 1_000
        return Call(self._service, "GET", HEALTH, wait_s, self._connect_s)


def _not_well(busy: RunnerBusy) -> RunnerUnavailable:
    """Health waits for no slots: where it does not answer, nobody is there."""
    return RunnerUnavailable(busy.detail, status=busy.status, code=busy.code)


class Client(_Caller):
    """A service, for threads.  It can be shared between them.

    `url` such as http://127.0.0.1:8300, with TLS as https; `retries`: how often a busy service
    is asked again, or a Backoff; `times`: the settings of a service that has not the defaults;
    `transport`: another than httpx's own, for tests.  Clock (seconds), sleep and chance (from
    [0, 1)) are for tests as well.  Raises AddressError.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retries: int | Backoff = 0,
        times: Times = USUAL,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(url, key, retries, times, connect_timeout_ms)
        self._http = sync_http(self._service, transport)
        self._clock, self._sleep, self._chance = clock, sleep, chance

    def execute(self, request: Request, *, request_id: str | None = None) -> Answer:
        """Run the request's steps and wait for their results.

        Waits for budget, queue allowance and slack, beside the time to connect.  Raises
        RunnerError, and ValueError for what cannot be sent.
        """
        call = self._execute(request, request_id)
        attempts = Attempts(self._backoff, self._clock, self._chance)
        while True:
            try:
                return read_execute(exchange(self._http, call), request)
            except RunnerBusy as busy:
                pause_s = attempts.pause_s(busy)
            self._sleep(pause_s)

    def health(self) -> None:
        """Returns where the service is ready.  Raises RunnerError, as a rule RunnerUnavailable."""
        try:
            read_health(exchange(self._http, self._health()))
        except RunnerBusy as busy:
            raise _not_well(busy) from busy

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(_Caller):
    """A service, for asyncio.  As `Client`; cancelling a call cancels its run."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retries: int | Backoff = 0,
        times: Times = USUAL,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(url, key, retries, times, connect_timeout_ms)
        self._http = async_http(self._service, transport)
        self._clock, self._sleep, self._chance = clock, sleep, chance

    async def execute(self, request: Request, *, request_id: str | None = None) -> Answer:
        """As `Client.execute`."""
        call = self._execute(request, request_id)
        attempts = Attempts(self._backoff, self._clock, self._chance)
        while True:
            try:
                return read_execute(await exchange_async(self._http, call), request)
            except RunnerBusy as busy:
                pause_s = attempts.pause_s(busy)
            await self._sleep(pause_s)

    async def health(self) -> None:
        """As `Client.health`."""
        try:
            read_health(await exchange_async(self._http, self._health()))
        except RunnerBusy as busy:
            raise _not_well(busy) from busy

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
