"""Answers to clients that do not take them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from tests.hosting import LIMIT_S, LiveService

MIB = 1 << 20
# As JSON six times as long: more than the kernel's buffers hold.
NULS = {
    "cmd": "/usr/bin/head",
    "args": ["-c", str(4 * MIB), "/dev/zero"],
    "limits": {"output_bytes": 4 * MIB},
}


def _ask_and_read_little(service: LiveService) -> socket.socket:
    body = json.dumps({"steps": [NULS]}).encode()
    link = socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT_S)
    link.sendall(
        b"POST /api/v1/execute HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert link.recv(15).startswith(b"HTTP/1.1 200")
    return link


def test_unread_answers_beyond_their_bound_are_cut_off_the_oldest_first(
    start_service: Callable[..., LiveService],
) -> None:
    service = start_service(
        EXECUTE_BODY_LIMIT_BYTES=str(MIB), ADMITTED_BYTES=str(6 * MIB), MAX_CONCURRENCY="2"
    )
    with _ask_and_read_little(service) as first, _ask_and_read_little(service) as second:
        # Two of them have no room: the first ends before its answer does.
        size = 0
        try:
            while data := first.recv(MIB):
                size += len(data)
        except ConnectionResetError:
            pass
        assert size < 24 * MIB
        # The second is whole, however late it is read.
        whole = b""
        while not whole.endswith(b"\r\n0\r\n\r\n"):
            data = second.recv(MIB)
            assert data
            whole += data
        assert len(whole) > 24 * MIB
    # What is large and read at once is as it always was.
    answer = service.execute(NULS)
    assert answer.body["results"][0]["stdout"] == "\0" * (4 * MIB)


def test_a_large_answer_to_http_1_0_ends_with_its_connection(
    start_service: Callable[..., LiveService],
) -> None:
    service = start_service()
    body = json.dumps({"steps": [NULS]}).encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT_S) as link:
        link.sendall(
            b"POST /api/v1/execute HTTP/1.0\r\nConnection: keep-alive\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        whole = b"".join(iter(lambda: link.recv(MIB), b""))
    head, _, answer = whole.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert json.loads(answer)["results"][0]["stdout"] == "\0" * (4 * MIB)
