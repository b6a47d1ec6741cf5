"""One request and its whole answer over a connection of its own, sync and async.

httpx's timeouts are for each read, and a server that sends a byte now and then would never meet
one.  So the wait as a whole is watched from the moment that the connection stands.

No connection is kept for the next request.  One that was could have been closed by the service
meanwhile, and a request that is lost with it looks like a run that was lost.  And where the
caller leaves, by whatever exception, its connection is closed: the service then cancels the run.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

from gaoler.http.client_address import AddressError, Service
from gaoler.http.client_answers import Arrived
from gaoler.http.client_errors import (
    AnswerGarbled,
    NotConnected,
    RunnerBusy,
    RunnerError,
    RunnerUnavailable,
)

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way to a service."""

    service: Service
    method: str
    route: str
    wait_s: float  # for the whole answer, once the connection stands
    connect_s: float
    body: bytes = field(default=b"", repr=False)
    request_id: str | None = None

    def request(
        self, http: httpx.Client | httpx.AsyncClient, trace: Callable[..., object]
    ) -> httpx.Request:
        """As httpx sends it; `trace` is told of every event of the connection."""
        # For reading and writing as well: a transport that is not httpx's own tells nothing.
        timeout = httpx.Timeout(self.wait_s, connect=self.connect_s, pool=None)
        return http.build_request(
            self.method,
            self.service.url + self.route,
            content=self.body or None,
            headers=self._headers(),
            timeout=timeout,
            extensions={"trace": trace},
        )

    def _headers(self) -> dict[bytes, bytes]:
        fields = {
            b"Accept": b"application/json",
            b"Accept-Encoding": b"identity",
            b"Connection": b"close",
            b"User-Agent": b"gaoler",
        }
        if self.body:
            fields[b"Content-Type"] = b"application/json"
        if self.service.key is not None:
            fields[b"X-API-Key"] = self.service.key.encode()
        if self.request_id is not None:
            fields[b"X-Request-Id"] = self.request_id.encode()
        return fields

    @property
    def connected(self) -> str:
        """The event of httpx after which the connection stands."""
        what = "start_tls" if self.service.secure else "connect_tcp"
        return f"connection.{what}.complete"

    def outlasted(self) -> RunnerBusy:
        return RunnerBusy(f"{self.service.address}: no answer within {self.wait_s:g} s")

    def failed(self, error: httpx.RequestError) -> RunnerError:
        """What it means that httpx gave up."""
        address = self.service.address
        if isinstance(error, httpx.ConnectTimeout):
            return NotConnected(f"{address}: no connection within {self.connect_s:g} s")
        if isinstance(error, httpx.ConnectError):
            return NotConnected(f"{address}: {_why(error)}")
        if isinstance(error, httpx.TimeoutException):
            return self.outlasted()
        if isinstance(error, httpx.DecodingError):
            return AnswerGarbled(f"{address}: {error}")
        return RunnerUnavailable(f"{address}: {_why(error)}")


# --- sync ---------------------------------------------------------------------------------


def sync_http(service: Service, transport: httpx.BaseTransport | None) -> httpx.Client:
    """Raises AddressError for a URL that httpx does not take."""
    _check_url(service)
    if transport is None:
        transport = httpx.HTTPTransport(verify=_trust(service), trust_env=False, limits=_LIMITS)
    return httpx.Client(transport=transport, trust_env=False)


def exchange(http: httpx.Client, call: Call) -> Arrived:
    """Raises RunnerError where there is no whole answer in time."""
    watch = _Watch(call)
    try:
        response = http.send(call.request(http, watch.hear), stream=True)
        try:
            return _arrived(response, response.read())
        finally:
            response.close()
    except httpx.RequestError as error:
        raise (call.outlasted() if watch.expired else call.failed(error)) from error
    finally:
        watch.end()


class _Watch:
    """Cuts a connection when its time is over; whoever reads from it then finds its end."""

    def __init__(self, call: Call) -> None:
        self.expired = False
        self._call = call
        self._timer: threading.Timer | None = None

    def hear(self, event: str, info: Mapping[str, Any]) -> None:
        if event != self._call.connected:
            return
        cut = info["return_value"].get_extra_info("socket")
        self._timer = threading.Timer(self._call.wait_s, self._expire, [cut])
        self._timer.daemon = True
        self._timer.start()

    def _expire(self, cut: socket.socket) -> None:
        self.expired = True
        try:
            # Not the method of a TLS socket, which throws away what another thread is using.
            socket.socket.shutdown(cut, socket.SHUT_RDWR)
        except OSError:
            pass  # closed by now

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


# --- async --------------------------------------------------------------------------------


def async_http(service: Service, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    """As `sync_http`."""
    _check_url(service)
    if transport is None:
        transport = httpx.AsyncHTTPTransport(
            verify=_trust(service), trust_env=False, limits=_LIMITS
        )
    return httpx.AsyncClient(transport=transport, trust_env=False)


async def exchange_async(http: httpx.AsyncClient, call: Call) -> Arrived:
    """As `exchange`."""
    with anyio.CancelScope() as scope:
        try:
            response = await http.send(call.request(http, _starts(scope, call)), stream=True)
            try:
                return _arrived(response, await response.aread())
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise call.failed(error) from error
    raise call.outlasted()


def _starts(scope: anyio.CancelScope, call: Call) -> Callable[..., Awaitable[None]]:
    """Sets the deadline of `scope` when the connection stands."""

    async def hear(event: str, info: Mapping[str, Any]) -> None:
        del info
        if event == call.connected:
            scope.deadline = anyio.current_time() + call.wait_s

    return hear


# --- both ---------------------------------------------------------------------------------


def _arrived(response: httpx.Response, content: bytes) -> Arrived:
    return Arrived(response.status_code, response.headers, content)


def _check_url(service: Service) -> None:
    try:
        _ = httpx.URL(service.url).host  # decoded, where it is an international name
    except (httpx.InvalidURL, UnicodeError) as problem:
        raise AddressError(f"the URL {service.url!a}: {problem}") from None


def _trust(service: Service) -> ssl.SSLContext:
    """The certificates that this host trusts, or those of SSL_CERT_FILE; not httpx's own.

    Without TLS none are read, which would take as long as a small request.
    """
    if service.secure:
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _why(error: httpx.RequestError) -> str:
    """In the operating system's words where it was the one that said no."""
    cause = _os_error(error)
    if cause is not None:
        return _strerror(cause)
    if not isinstance(error, httpx.RemoteProtocolError):
        return str(error) or type(error).__name__
    said = str(error)
    if "disconnected" in said or "peer closed" in said:
        return "the connection ended before the answer"
    return "what answers there does not speak HTTP"


def _strerror(error: OSError) -> str:
    if isinstance(error, ssl.SSLError | socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    # asyncio writes a text of its own into it.
    return os.strerror(error.errno) if error.errno in errno.errorcode else str(error)


def _os_error(error: BaseException) -> OSError | None:
    """The innermost error of the operating system that this one came from."""
    found = None
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError):
            found = below
        if isinstance(below, BaseExceptionGroup):  # every address of a host was tried
            below = below.exceptions[0]
        else:
            below = below.__cause__ or below.__context__
    return found
