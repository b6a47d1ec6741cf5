"""Both clients against servers on this host: what goes out, and all that can come of it."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import ssl

import httpx
import pytest

from gaoler.http.client import (
    AnswerGarbled,
    Client,
    Limits,
    NotConnected,
    Queue,
    Request,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerFailed,
    RunnerUnavailable,
    Task,
)
from tests.hosting import free_port
from tests.http.asking import HELLO, OK, Ask, Serve, problem
from tests.http.scripted import Script, answering, http, refuses_early, resets, sends

pytest_plugins = ["tests.http.client_fixtures"]

KEY = "s3cret-s3cret-s3cret"


# --- what goes out ------------------------------------------------------------------------


def test_a_request_is_one_post_with_the_key_and_the_budget(ask: Ask, serve: Serve) -> None:
    server = serve(sends(OK))
    asked = Request([Task("python3", ["-c", "é"], limits=Limits(wall_ms=700))], budget_ms=5_000)
    assert ask(f"{server.url}/below/", asked, key=KEY).each[0].succeeded
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /below/api/v1/execute HTTP/1.1\r\n")
    for line in (f"X-API-Key: {KEY}", "Content-Type: application/json", "Connection: close"):
        assert line.encode() in head.split(b"\r\n")
    task = {"cmd": "python3", "args": ["-c", "é"], "limits": {"wall_ms": 700}}
    assert json.loads(body) == {"steps": [task], "budget_ms": 1_200}


def test_every_request_has_a_connection_of_its_own(serve: Serve) -> None:
    server = serve(sends(OK))
    with Client(server.url) as client:
        assert client.execute(HELLO).request_id == "r"
        assert client.execute(HELLO, request_id="mine").request_id == "r"
    assert [b"\r\nX-Request-Id: mine\r\n" in each for each in server.requests] == [False, True]


def test_a_request_id_that_the_service_would_not_take_is_refused_here() -> None:
    with Client("http://host") as client, pytest.raises(ValueError, match="request_id"):
        client.execute(HELLO, request_id="two words")


def test_no_proxy_of_the_environment_is_asked(
    ask: Ask, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert ask(serve(sends(OK)).url).request_id == "r"


def test_tls_is_checked_against_what_the_host_trusts(
    ask: Ask, serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(sends(OK), tls=tls)
    assert ask(server.url, key=KEY).request_id == "r"
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
        ask(server.url, key=KEY)


# --- refusals -----------------------------------------------------------------------------


REFUSALS = [
    (429, problem("rate_limited"), RunnerBusy),
    (503, problem("capacity_exhausted", reason="busy"), RunnerBusy),
    (503, problem("runner_unavailable", reason="busy"), RunnerBusy),
    (503, problem("runner_unavailable"), RunnerUnavailable),
    (503, problem("not_ready"), RunnerUnavailable),
    (503, problem("shutting_down"), RunnerUnavailable),
    (503, problem("draining"), RunnerUnavailable),
    (400, problem("invalid_request"), RequestRefused),
    (401, problem("unauthorized"), RequestRefused),
    (404, problem("file_not_found"), RequestRefused),
    (409, problem("attempt_in_flight"), RequestRefused),
    (413, problem("body_too_large"), RequestRefused),
    (422, problem("limits_exceeded"), RequestRefused),
    (500, problem("sandbox_setup_failed"), RunnerFailed),
    (504, problem("deadline_exceeded"), RunnerFailed),
    (501, problem("invalid_request"), RunnerFailed),
]


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
def test_every_refusal_is_of_one_class_and_carries_what_it_says(
    ask: Ask, status: int, body: dict[str, object], kind: type[RunnerError]
) -> None:
    with pytest.raises(RunnerError) as caught:
        ask("http://host", transport=answering(status, body, Retry_After="7"))
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.reason) == (status, body["code"], body.get("reason"))
    assert str(error) == error.detail == body["detail"]
    assert (error.request_id, error.retry_after_s) == ("r-1", 7)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"waiting": 3, "position": 4, "eta_ms": 5_000, "new": 1}, Queue(3, 4, 5_000)),
        ({}, Queue()),
        ({"waiting": "many"}, None),
        (None, None),
    ],
)
def test_a_busy_service_tells_of_its_queue(ask: Ask, given: object, read: Queue | None) -> None:
    full = problem("capacity_exhausted", reason="busy", queue=given)
    with pytest.raises(RunnerBusy) as caught:
        ask("http://host", transport=answering(503, full))
    assert caught.value.queue == read
    assert caught.value.detail == "because capacity_exhausted"


@pytest.mark.parametrize(
    ("status", "kind", "detail"),
    [
        (502, RunnerUnavailable, "status 502 Bad Gateway"),
        (503, RunnerUnavailable, "status 503 Service Unavailable"),
        (504, RunnerFailed, "status 504 Gateway Timeout"),
        (204, RunnerFailed, "status 204 No Content"),
        (299, RunnerFailed, "status 299"),
    ],
)
def test_a_proxys_page_is_told_by_its_status(
    ask: Ask, status: int, kind: type[RunnerError], detail: str
) -> None:
    page = answering(status, b"<html>", X_Request_Id="r", Retry_After="soon")
    with pytest.raises(RunnerError) as caught:
        ask("http://host", transport=page)
    assert type(caught.value) is kind
    assert caught.value.detail == detail
    assert (caught.value.request_id, caught.value.retry_after_s) == ("r", None)


def test_a_redirect_is_told_and_not_followed(ask: Ask) -> None:
    with pytest.raises(RequestRefused, match="it points to https://there/"):
        ask("http://host", transport=answering(301, Location="https://there/"))


def test_a_refusal_before_the_body_was_sent_is_read(ask: Ask, serve: Serve) -> None:
    refusal = http("413 Too Large", b'{"detail": "too large"}')
    server = serve(refuses_early(refusal), read_body=False)
    large = Request([Task("true", stdin=b" " * (24 << 20))])
    with pytest.raises(RequestRefused, match="too large"):
        ask(server.url, large)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff", b"[]", b'{"results": [{}]}', b'{"results": [{"outcome": 3}]}'],
)
def test_a_200_that_makes_no_sense_is_garbled(ask: Ask, body: bytes) -> None:
    with pytest.raises(AnswerGarbled) as caught:
        ask("http://host", transport=answering(200, body, X_Request_Id="r"))
    assert (caught.value.status, caught.value.request_id) == (200, "r")


def test_an_answer_of_broken_compression_is_garbled(ask: Ask, serve: Serve) -> None:
    server = serve(sends(http("200 OK", b"no gzip", {"Content-Encoding": "gzip"})))
    with pytest.raises(AnswerGarbled):
        ask(server.url)


# --- nobody there -------------------------------------------------------------------------


def test_nobody_is_there(ask: Ask) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(NotConnected) as caught:
        ask(f"http://{address}")
    assert caught.value.detail == f"{address}: Connection refused"
    assert caught.value.status is None


def test_a_host_of_no_address_is_not_there(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(NotConnected, match="gaoler: Name or service not known"):
        ask("http://gaoler")


def test_who_does_not_take_the_connection_is_not_there(ask: Ask) -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["connect"] == 2.5
        raise httpx.ConnectTimeout("", request=request)

    with pytest.raises(NotConnected, match="host: no connection within"):
        ask("http://host", transport=httpx.MockTransport(silent), connect_timeout_ms=2_500)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (sends(b""), "the connection ended before the answer"),
        (sends(b"HTTP/1.1 200 OK\r\nContent-"), "the connection ended before the answer"),
        (
            sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
            "the connection ended before the answer",
        ),
        (
            sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"),
            "the connection ended before the answer",
        ),
        (resets, "Connection reset by peer"),
        (sends(b"220 mail ESMTP\r\n\r\n"), "what answers there does not speak HTTP"),
        # What a TLS server says to one who speaks plainly.
        (sends(b"\x15\x03\x03\0\x02\x02\x46"), "what answers there does not speak HTTP"),
    ],
)
def test_half_an_answer_is_none(ask: Ask, serve: Serve, script: Script, why: str) -> None:
    server = serve(script)
    with pytest.raises(RunnerUnavailable) as caught:
        ask(server.url)
    assert type(caught.value) is RunnerUnavailable
    assert caught.value.detail == f"127.0.0.1:{server.port}: {why}"


# --- the key, and the errors themselves ---------------------------------------------------


def test_the_key_is_never_shown(ask: Ask, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ask(serve(sends(OK)).url, key=KEY)
    with pytest.raises(RunnerUnavailable) as caught:
        ask(serve(sends(b"")).url, key=KEY)
    with Client("http://host", KEY) as client:
        shown = [repr(client), repr(client._execute(HELLO, None)), caplog.text]
    error: BaseException | None = caught.value
    while error is not None:
        shown += [repr(error), str(error)]
        error = error.__cause__ or error.__context__
    assert "connect_tcp" in caplog.text  # else nothing was logged that could have shown it
    assert [text for text in shown if KEY in text] == []


def test_an_error_outlives_its_process() -> None:
    error = RunnerBusy("full", status=503, retry_after_s=4, queue=Queue(1, 2, 3))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (RunnerBusy, "full", vars(error))


def test_every_error_is_a_runner_error_and_their_families_do_not_mix() -> None:
    families = (RunnerBusy, RunnerUnavailable, RequestRefused, RunnerFailed)
    for kind in (*families, NotConnected, AnswerGarbled):
        assert issubclass(kind, RunnerError)
        assert sum(issubclass(kind, family) for family in families) == 1
