"""Servers that do what no decent one does: cut, slow, silent, or not HTTP at all."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping

import httpx

from tests.hosting import LIMIT_S

# What is done with each connection, once its request was read.
Script = Callable[[socket.socket], None]


class Scripted:
    """Takes connections one after the other, reads a request from each, and follows a script."""

    def __init__(
        self, *scripts: Script, tls: ssl.SSLContext | None = None, read_body: bool = True
    ) -> None:
        self.requests: list[bytes] = []
        self.served = threading.Semaphore(0)  # released when a script has ended
        self._scripts = scripts
        self._tls = tls
        self._read_body = read_body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT_S)
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener:
            for number in itertools.count():
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # closed
                    return
                script = self._scripts[min(number, len(self._scripts) - 1)]
                with connection:
                    self._follow(connection, script)
                self.served.release()

    def _follow(self, plain: socket.socket, script: Script) -> None:
        plain.settimeout(LIMIT_S)
        try:
            with self._spoken(plain) as connection:
                self.requests.append(request(connection, self._read_body))
                script(connection)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass  # the client has left

    def _spoken(self, plain: socket.socket) -> socket.socket:
        return plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def request(connection: socket.socket, with_body: bool) -> bytes:
    """One request, with its body or as much of it as came along."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += _more(connection)
    head = read.partition(b"\r\n\r\n")[0]
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    whole = len(head) + 4 + sum(int(line.partition(b":")[2]) for line in lengths)
    while with_body and len(read) < whole:
        read += _more(connection)
    return read


def _more(connection: socket.socket) -> bytes:
    got = connection.recv(65_536)
    if not got:
        raise ConnectionResetError
    return got


def http(status: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole answer."""
    fields = {"Content-Length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def sends(*parts: bytes) -> Script:
    """Send this and hang up."""

    def script(connection: socket.socket) -> None:
        connection.sendall(b"".join(parts))

    return script


def refuses_early(answer: bytes) -> Script:
    """Answer while the body is being sent, and linger, so that no reset destroys the answer."""

    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        waits_for_the_end(connection)

    return script


def waits_for_the_end(connection: socket.socket) -> None:
    """Say nothing until the client has gone."""
    while connection.recv(65_536):
        pass


def trickles(head: bytes) -> Script:
    """Send a beginning, then a byte now and then, so that no single read takes long."""

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        connection.settimeout(0.01)
        for _ in range(int(LIMIT_S / 0.01)):
            connection.sendall(b"x")
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                pass

    return script


def resets(connection: socket.socket) -> None:
    """End the connection as a crash does."""
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def answering(status: int, body: object = b"", **headers: str) -> httpx.MockTransport:
    """A transport without a network, for either client."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.MockTransport(lambda _: httpx.Response(status, content=content, headers=fields))
