"""What only real sockets show: gunicorn's worker, early refusals, clients that leave."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from gaoler.tests.http.conftest import Server

    MakeServer = Callable[..., Server]

TRUE = json.dumps({"steps": [{"cmd": "/bin/true"}]}).encode()
WAIT = json.dumps({"steps": [{"cmd": "wait"}]}).encode()
LIMIT_BYTES = 2**20  # the served EXECUTE_BODY_LIMIT_BYTES
KEY = "k" * 32


def head(*lines: str, method: str = "POST", path: str = "/api/v1/execute") -> bytes:
    fixed = (f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json")
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def sized(body: bytes, *lines: str) -> bytes:
    return head(f"Content-Length: {len(body)}", *lines) + body


@dataclass(frozen=True)
class Heard:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self) -> tuple[int, str]:
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["request_id"] == self.headers["x-request-id"]
        return self.status, self.json["code"]


class Line:
    """One connection, read by hand: nothing but what was sent can be heard."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._file = link.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.link.close()

    def send(self, data: bytes) -> Line:
        self.link.sendall(data)
        return self

    def push(self, data: bytes) -> Line:
        """Send what the other side takes, all of it or not."""
        try:
            return self.send(data)
        except ConnectionError:
            return self

    def hear(self) -> Heard:
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Heard(status, headers, self._file.read(int(headers.get("content-length", 0))))

    def ended(self) -> bool:
        return self._file.read(1) == b""


def test_a_request_is_answered_and_the_connection_stays(served: Server) -> None:
    with Line(served.connect()) as line:
        for _ in range(2):
            heard = line.send(sized(TRUE)).hear()
            assert heard.status == 200
            assert heard.json["results"][0]["stdout"] == "/bin/true"


def test_requests_sent_together_are_answered_in_their_order(served: Server) -> None:
    ids = ["one", "two", "three"]
    with Line(served.connect()) as line:
        line.send(b"".join(sized(TRUE, f"X-Request-Id: {each}") for each in ids))
        assert [line.hear().json["request_id"] for _ in ids] == ids


def test_a_chunked_body_is_read(served: Server) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (TRUE[:5], TRUE[5:])) + b"0\r\n\r\n"
    with Line(served.connect()) as line:
        assert line.send(head("Transfer-Encoding: chunked") + chunks).hear().status == 200


def test_a_client_that_asks_first_is_told_to_go_on(served: Server) -> None:
    with Line(served.connect()) as line:
        line.send(head(f"Content-Length: {len(TRUE)}", "Expect: 100-continue"))
        assert line.hear().status == 100
        assert line.send(TRUE).hear().status == 200


def test_a_stranger_that_asks_first_is_refused_instead(guarded: Server) -> None:
    with Line(guarded.connect()) as line:
        line.send(head("Content-Length: 1000", "Expect: 100-continue"))
        assert line.hear().problem() == (401, "unauthorized")


def test_a_stranger_is_refused_before_it_sent_a_byte_of_its_body(guarded: Server) -> None:
    with Line(guarded.connect()) as line:
        line.send(head("Content-Length: 1000"))
        assert line.hear().problem() == (401, "unauthorized")


@pytest.mark.parametrize("megabytes", [2, 40])
def test_a_client_that_sends_all_before_it_listens_still_hears_the_refusal(
    served: Server, guarded: Server, megabytes: int
) -> None:
    body = b"x" * (megabytes * 2**20)
    with Line(served.connect()) as line:
        assert line.push(sized(body)).hear().problem() == (413, "body_too_large")
    with Line(guarded.connect()) as line:
        assert line.push(sized(body)).hear().problem() == (401, "unauthorized")


def test_a_refused_body_that_was_all_sent_leaves_the_connection_usable(served: Server) -> None:
    with Line(served.connect()) as line:
        body = b"x" * (LIMIT_BYTES // 2)
        line.send(head(f"Content-Length: {len(body)}", path="/nowhere") + body)
        assert line.hear().problem() == (404, "not_found")
        assert line.send(sized(TRUE)).hear().status == 200


def test_a_chunked_body_is_refused_where_it_becomes_too_large(served: Server) -> None:
    chunk = b"%x\r\n%s\r\n" % (2**16, b"x" * 2**16)
    with Line(served.connect()) as line:
        line.send(head("Transfer-Encoding: chunked") + chunk * 17)
        assert line.hear().problem() == (413, "body_too_large")


def test_a_body_that_does_not_come_is_a_400(served: Server) -> None:
    with Line(served.connect()) as line:
        line.send(head("Content-Length: 100") + b"{")
        assert line.hear().problem() == (400, "body_timeout")
        assert line.ended()  # what comes now could be the rest of the body


def test_a_body_that_comes_drop_by_drop_is_a_400(served: Server) -> None:
    with Line(served.connect()) as line:
        line.send(head("Content-Length: 1000000"))
        while not select.select([line.link], [], [], 0.001)[0]:
            line.send(b" ")
        assert line.hear().problem() == (400, "body_timeout")


def test_a_client_that_hangs_up_while_it_waits_cancels_its_request(served: Server) -> None:
    request_id = uuid4().hex
    with Line(served.connect()) as line:
        line.send(sized(WAIT, f"X-Request-Id: {request_id}"))
        served.wait_for(event="submitted", request_id=request_id)
    ended = served.wait_for(event="request", request_id=request_id)
    assert ended["code"] == "cancelled"


def test_a_client_that_hangs_up_in_its_body_is_noted_once(served: Server) -> None:
    request_id = uuid4().hex
    with Line(served.connect()) as line:
        line.send(head("Content-Length: 100", f"X-Request-Id: {request_id}") + b"{")
    assert served.wait_for(request_id=request_id)["code"] == "cancelled"


def test_the_two_addresses_serve_different_routes(served: Server) -> None:
    queue = head(method="GET", path="/internal/queue")
    with Line(served.connect()) as line:
        assert line.send(queue).hear().problem() == (404, "not_found")
    with Line(served.connect(internal=True)) as line:
        assert line.send(queue).hear().json["free"] == 2
        assert line.send(sized(TRUE)).hear().problem() == (404, "not_found")


NOT_HTTP = {
    "no request line": (b"HELLO\r\n\r\n", 400),
    "a header that is too long": (head("X: " + "x" * 20_000, method="GET"), 431),
    "too many headers": (head(*(f"X{n}: x" for n in range(300)), method="GET"), 431),
    "a path that is too long": (head(method="GET", path="/" + "x" * 10_000), 414),
    "a lower-case method": (head(method="get"), 400),
    "a header without a name": (head(": x"), 400),
    "two lengths": (head("Content-Length: 1", "Content-Length: 2"), 400),
    "a length and chunks": (head("Content-Length: 1", "Transfer-Encoding: chunked"), 400),
    "a coding without chunks": (head("Transfer-Encoding: gzip"), 400),
    "an unknown coding": (head("Transfer-Encoding: xchunked"), 501),
    "a length of 5000 digits": (head("Content-Length: " + "1" * 5000), 400),
}


@pytest.mark.parametrize(("sent", "status"), NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_a_problem_too_and_is_logged(
    served: Server, sent: bytes, status: int
) -> None:
    with Line(served.connect()) as line:
        heard = line.send(sent).hear()
        assert heard.status == status
        assert heard.problem()[1] == "invalid_request"
        assert "service" not in heard.json["title"]  # as if it were our fault
        assert line.ended()
    request_id = heard.headers["x-request-id"]
    assert served.wait_for(event="request", request_id=request_id)["status"] == status


@pytest.mark.parametrize(
    "coding", ["xchunked", "gzip, chunked", "chunked;q=1", "identity, chunked", "deflate,chunked"]
)
def test_a_transfer_coding_that_is_not_taken_is_named(served: Server, coding: str) -> None:
    with Line(served.connect()) as line:
        heard = line.send(head(f"Transfer-Encoding: {coding}") + b"0\r\n\r\n").hear()
        assert (heard.status, heard.json["code"]) == (501, "invalid_request")
        assert json.dumps(coding.partition(",")[0]) in heard.json["detail"]
        assert line.ended()


def test_an_unknown_method_is_refused_as_any_wrong_one_is(served: Server) -> None:
    with Line(served.connect()) as line:
        for method in ("FOO", "PROPFIND", "WEBSOCKET", "TRACE"):
            heard = line.send(head(method=method)).hear()
            assert heard.problem() == (405, "method_not_allowed")
            assert "POST" in heard.headers["allow"]
            assert line.send(head(method=method, path="/x")).hear().problem() == (404, "not_found")


def test_a_target_in_absolute_form_is_served_as_its_path(served: Server) -> None:
    with Line(served.connect()) as line:
        for start in ("http://x:8300", "HTTPS://[::1]"):
            for path, status in (("/api/v1/health?x", 200), ("/api/v1/%68ealth", 200), ("", 404)):
                assert line.send(head(method="GET", path=start + path)).hear().status == status
        target = "ftp://x/api/v1/health"
        assert line.send(head(method="GET", path=target)).hear().problem() == (404, "not_found")


@pytest.mark.parametrize("start", [b"", b"1\r\n{\r\n"])
def test_a_broken_chunk_ends_the_request(served: Server, start: bytes) -> None:
    request_id = uuid4().hex
    with Line(served.connect()) as line:
        line.send(head("Transfer-Encoding: chunked", f"X-Request-Id: {request_id}") + start)
        heard = line.send(b"zz\r\n").hear()
        assert heard.problem() == (400, "invalid_request")
        assert heard.json["request_id"] == request_id
        assert line.ended()
    served.wait_for(event="request", request_id=request_id)


def test_a_broken_chunk_right_behind_the_head_is_logged(served: Server) -> None:
    request_id = uuid4().hex
    with Line(served.connect()) as line:
        line.send(head("Transfer-Encoding: chunked", f"X-Request-Id: {request_id}") + b"zz\r\n")
        assert line.hear().problem() == (400, "invalid_request")
    served.wait_for(event="request", request_id=request_id)


def test_an_upgrade_is_ignored(served: Server) -> None:
    lines = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    with Line(served.connect()) as line:
        line.send(head(*lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", method="GET"))
        assert line.hear().problem() == (405, "method_not_allowed")


def test_a_path_of_odd_bytes_is_a_404_and_logged(served: Server) -> None:
    for path in ("/%ff", "/%00", "/a%0ab", "/%ed%a0%80", "/api/v1/files/..%2f..%2fetc%2fpasswd"):
        with Line(served.connect()) as line:
            heard = line.send(head(method="GET", path=path)).hear()
            assert heard.problem() == (404, "not_found")
        assert served.wait_for(request_id=heard.headers["x-request-id"])["status"] == 404


def test_a_key_opens_the_guarded_server(guarded: Server) -> None:
    with Line(guarded.connect()) as line:
        assert line.send(sized(TRUE, f"X-API-Key: {KEY}")).hear().status == 200
        assert line.send(sized(TRUE, f"Authorization: Bearer {KEY}")).hear().status == 200
        assert line.send(head(method="GET", path="/api/v1/health")).hear().status == 200


def test_a_server_that_is_told_to_end_answers_what_waits_first(make_server: MakeServer) -> None:
    server = make_server()
    with Line(server.connect()) as line:
        line.send(sized(WAIT, "X-Request-Id: waiting"))
        server.wait_for(event="submitted")
        server.process.terminate()
        assert line.hear().problem() == (503, "shutting_down")
    server.stop()
    events = [each["event"] for each in server.log]
    assert events == ["serving", "submitted", "stopping", "request", "stopped"]


def test_every_request_wrote_exactly_one_line(served: Server) -> None:
    request_id = uuid4().hex
    after = uuid4().hex
    with Line(served.connect()) as line:
        for each in (request_id, after):
            assert line.send(sized(TRUE, f"X-Request-Id: {each}")).hear().status == 200
    served.wait_for(request_id=after)
    assert len([each for each in served.log if each.get("request_id") == request_id]) == 1
