"""One request to a service: what it looks like, and what may come back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gaoler.cli.run_outcome import Ran
from gaoler.cli.service import (
    AddressError,
    Garbled,
    Refused,
    Service,
    Unreachable,
    post,
    service_at,
)
from tests.hosting import LIMIT_S, free_port

Answering = Callable[[bytes], "Scripted"]


class Scripted:
    """Takes one connection, reads one request, sends the given bytes and hangs up."""

    def __init__(self, answer: bytes, read_body: bool = True) -> None:
        self.request = b""
        self._answer = answer
        self._read_body = read_body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            connection.settimeout(LIMIT_S)
            head_only = not self._read_body
            while not (b"\r\n\r\n" in self.request and (head_only or b"END" in self.request)):
                self.request += connection.recv(65_536)
            connection.sendall(self._answer)
            if head_only:  # as the service does: linger, so that no reset destroys the answer
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

    def close(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def answering() -> Iterator[Callable[..., Scripted]]:
    servers: list[Scripted] = []

    def start(answer: bytes, read_body: bool = True) -> Scripted:
        servers.append(Scripted(answer, read_body))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def ask(url: str, key: str | None = None, patience_s: float = LIMIT_S) -> object:
    return post(service_at(url, key), "/api/v1/execute", b"END", patience_s, Ran)


def test_the_request_is_one_post_with_the_key(answering: Answering) -> None:
    server = answering(http("200 OK", b'{"results": []}'))
    assert ask(f"{server.url}/below/", "k3y") == Ran([])
    head, _, body = server.request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /below/api/v1/execute HTTP/1.1\r\n")
    assert b"\r\nX-API-Key: k3y" in head
    assert b"\r\nContent-Type: application/json" in head
    assert body == b"END"


def test_a_problem_is_read_with_its_code_reason_and_retry_after(answering: Answering) -> None:
    body = b'{"detail": "full", "code": "c", "reason": "busy", "request_id": "r", "queue": {}}'
    server = answering(http("503 Service Unavailable", body, "Retry-After: 4"))
    assert ask(server.url) == Refused(503, "full", "c", "busy", 4, "r")


def test_a_proxys_page_is_told_by_its_status(answering: Answering) -> None:
    server = answering(http("502 Bad Gateway", b"<html>", "X-Request-Id: r", "Retry-After: soon"))
    assert ask(server.url) == Refused(502, "status 502 Bad Gateway", request_id="r")


def test_a_redirect_is_told_and_not_followed(answering: Answering) -> None:
    server = answering(http("301 Moved Permanently", b"", "Location: https://there/"))
    answer = ask(server.url)
    assert isinstance(answer, Refused)
    assert answer.detail.endswith("it points to https://there/")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b'{"results": [[]]}', b'{"results": [{}]}']
)
def test_a_200_that_makes_no_sense_is_garbled(answering: Answering, body: bytes) -> None:
    assert isinstance(ask(answering(http("200 OK", body)).url), Garbled)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the connection ended before the answer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            "the connection ended before the answer",
        ),
        (b"220 mail.example ESMTP\r\n", "what answers there does not speak HTTP"),
    ],
)
def test_half_an_answer_is_none(answering: Answering, answer: bytes, why: str) -> None:
    server = answering(answer)
    address = server.url.removeprefix("http://")
    assert ask(server.url) == Unreachable(f"{address}: {why}")


def test_a_refusal_before_the_body_was_sent_is_read(answering: Callable[..., Scripted]) -> None:
    server = answering(http("413 Too Large", b'{"detail": "too large"}'), read_body=False)
    large = b" " * (32 << 20)
    answer = post(service_at(server.url), "/", large, LIMIT_S, Ran)
    assert answer == Refused(413, "too large")


def test_nobody_is_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert ask(f"http://{address}") == Unreachable(
        f"{address}: Connection refused; does it run there? see --url and GAOLER_URL"
    )


def test_who_never_answers_is_left_in_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", patience_s=0.05)
    assert isinstance(answer, Unreachable)
    assert answer.why.endswith(": no answer within 0.05 s")


def test_a_url_may_have_a_port_and_a_path() -> None:
    assert service_at("https://[::1]:8/a/b/") == Service(True, "::1", 8, "/a/b")
    assert service_at("http://host") == Service(False, "host", None, "")


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:8300", "ftp://host", "http://", "http://:80", "http://host:x"),
        *("http://host:99999", "http://host/?a", "http://host/#a", "http://ho st", "http://hö"),
        "http://[::1",
    ],
)
def test_a_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(AddressError, match="the URL"):
        service_at(url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(AddressError) as caught:
        service_at("http://user:s3cret@host")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a\nb", " a", "\udcff", "a\0"])
def test_a_key_that_would_break_the_header_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(AddressError, match="the API key is"):
        service_at("http://host", key)


def test_the_key_is_not_shown_with_the_service() -> None:
    assert "s3cret" not in repr(service_at("http://host", "s3cret"))
