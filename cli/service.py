"""One request to a running service, and what came of it.

`post` tells four things apart: nothing answered (`Unreachable`), the service said no
(`Refused`), its answer makes no sense (`Garbled`), or it answered.  Whatever happens, and
also where Ctrl-C comes in between, the connection is closed: the service then cancels what
it still runs for us.
"""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

# A host that does not say a word within this time is not there.
CONNECT_S = 10.0


class AddressError(Exception):
    """The URL or the key cannot be used.  The text says why; it never holds the key."""


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service is, and the key that it wants."""

    secure: bool
    host: str
    port: int | None
    prefix: str  # of every path, without a slash at its end
    key: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """As it is shown to people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def headers(self) -> dict[str, bytes]:
        fields = {"Content-Type": b"application/json", "Connection": b"close"}
        return fields if self.key is None else fields | {"X-API-Key": self.key.encode()}


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nobody was there, or left before the answer was complete."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Any status but 200, with as much of the problem as the body told."""

    status: int
    detail: str
    code: str | None = None
    reason: str | None = None
    retry_after_s: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Garbled:
    """A 200 whose body is not what the route should give."""

    why: str


class _Problem(msgspec.Struct, frozen=True):
    """What is read of application/problem+json."""

    detail: str = ""
    code: str | None = None
    reason: str | None = None
    request_id: str | None = None


T = TypeVar("T")


def service_at(url: str, key: str | None = None) -> Service:
    """The service at a URL such as http://127.0.0.1:8300.  Raises AddressError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise AddressError(f"the URL {url!a}: {problem}") from None
    _check_url(url, parts)
    if key is not None and not (key and key.isprintable() and key == key.strip()):
        raise AddressError("the API key is empty or holds characters that no key has")
    host = parts.hostname or ""
    return Service(parts.scheme == "https", host, port, parts.path.rstrip("/"), key)


def _check_url(url: str, parts: SplitResult) -> None:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError(f"the URL {url!a}: expected http://HOST[:PORT] or https://HOST[:PORT]")
    if not re.fullmatch(r"[!-~]+", url):
        raise AddressError(f"the URL {url!a}: only printable ASCII is allowed")
    if "@" in parts.netloc:  # not shown: it may be a secret
        raise AddressError("the URL must not hold a user or a password")
    if parts.query or parts.fragment:
        raise AddressError(f"the URL {url!a}: it must end with the path")


def post(
    service: Service, path: str, body: bytes, patience_s: float, answer: type[T]
) -> T | Refused | Garbled | Unreachable:
    """Send one JSON body; a 200 is read as `answer`.

    `patience_s` is how long the service may take, from the sent request to its answer.
    """
    connection = _connection(service)
    limit_s = CONNECT_S
    try:
        connection.connect()
        limit_s = patience_s
        connection.sock.settimeout(limit_s)
        _send(connection, service, path, body)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        return Unreachable(f"{service.address}: {_why(error, limit_s)}")
    finally:
        connection.close()
    if response.status != http.client.OK:
        return _refused(response, content)
    return _decoded(content, answer)


def _connection(service: Service) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if service.secure else http.client.HTTPConnection
    return kind(service.host, service.port, timeout=CONNECT_S)


def _send(connection: http.client.HTTPConnection, service: Service, path: str, body: bytes) -> None:
    try:
        connection.request("POST", service.prefix + path, body, service.headers())
    except (BrokenPipeError, ConnectionResetError):
        # A refusal may come before all of the body is sent (a key, a size); it can be read
        # all the same.  Where there is none, reading the answer fails.
        pass


def _why(error: OSError | http.client.HTTPException, limit_s: float) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"{error.strerror}; does it run there? see --url and GAOLER_URL"
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead):
        return "the connection ended before the answer"
    if isinstance(error, http.client.HTTPException):
        return "what answers there does not speak HTTP"
    return error.strerror or str(error)


def _refused(response: http.client.HTTPResponse, content: bytes) -> Refused:
    problem = _decoded(content, _Problem)
    if isinstance(problem, Garbled):  # a proxy's page
        problem = _Problem()
    headers = response.headers
    detail = problem.detail or f"status {response.status} {response.reason}".strip()
    if "Location" in headers:
        detail = f"{detail}, it points to {headers['Location']}"
    retry_after = headers.get("Retry-After", "")
    return Refused(
        status=response.status,
        detail=detail,
        code=problem.code,
        reason=problem.reason,
        retry_after_s=int(retry_after) if re.fullmatch("[0-9]{1,9}", retry_after) else None,
        request_id=problem.request_id or headers.get("X-Request-Id"),
    )


def _decoded(content: bytes, shape: type[T]) -> T | Garbled:
    try:
        return msgspec.json.decode(content, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Garbled(str(error))
