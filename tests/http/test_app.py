"""The application over fake actors: routes, refusals, ids, the log, the lifespan."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from gaoler.actors.messages import QueueView, Refusal, Submit
from gaoler.config.settings import Settings
from gaoler.http import routes
from gaoler.http.app import Front
from gaoler.http.routes import Services

if TYPE_CHECKING:
    from gaoler.tests.http.conftest import Client, FakeActors

    MakeClient = Callable[..., Client]

KEY = "k" * 32
EXECUTE, HEALTH = "/api/v1/execute", "/api/v1/health"
TRUE = {"steps": [{"cmd": "/bin/true"}]}
LIMIT_S = 20.0


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The structured lines written so far."""
    caplog.set_level(logging.INFO)
    return lambda: [
        {"event": record.getMessage(), **record.__dict__["fields"]} for record in caplog.records
    ]


# --- execute -------------------------------------------------------------------------------


def test_a_request_is_answered_with_its_results(client: Client, actors: FakeActors) -> None:
    answered = client.execute({**TRUE, "later": 1})
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json["results"][0]["stdout"] == "/bin/true"
    assert answered.json["ignored_fields"] == ["later"]
    assert answered.json["timing"]["budget_ms"] == 10_500
    assert actors.submitted[0].request_id == answered.json["request_id"]
    assert actors.cancelled == []


def test_two_requests_with_the_same_id_have_tickets_of_their_own(
    client: Client, actors: FakeActors
) -> None:
    for _ in range(2):
        assert client.execute(TRUE, {"X-Request-Id": "same"}).json["request_id"] == "same"
    first, second = actors.submitted
    assert first.ticket != second.ticket
    assert first.request_id == second.request_id == "same"


@pytest.mark.parametrize("given", ["a", "A-z_0.9", "x" * 128])
def test_a_sane_request_id_comes_back(client: Client, given: str) -> None:
    answered = client.execute(TRUE, {"X-Request-Id": given})
    assert answered.headers["x-request-id"] == answered.json["request_id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a/b", "ä", "a\tb", "{}", "a\n"])
def test_any_other_request_id_is_replaced(client: Client, given: str) -> None:
    answered = client.request("GET", "/nowhere", headers={"X-Request-Id": given})
    assert answered.problem() == (404, "not_found")
    assert answered.headers["x-request-id"].isalnum()


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal("attempt_in_flight", "d"), 409),
        (Refusal("limits_exceeded", "d"), 422),
        (Refusal("rate_limited", "d", retry_after_s=7), 429),
        (Refusal("sandbox_setup_failed", "d"), 500),
        (Refusal("internal_error", "d"), 500),
        (Refusal("capacity_exhausted", "d", "busy", 3), 503),
        (Refusal("runner_unavailable", "d", "busy"), 503),
        (Refusal("cancelled", "d"), 503),
        (Refusal("shutting_down", "d"), 503),
        (Refusal("draining", "d"), 503),
        (Refusal("deadline_exceeded", "d"), 504),
    ],
)
def test_a_refusal_of_the_actors_becomes_a_problem(
    client: Client, actors: FakeActors, refusal: Refusal, status: int
) -> None:
    actors.answer = lambda submit: refusal
    answered = client.execute(TRUE)
    assert answered.problem() == (status, refusal.code)
    assert answered.json.get("reason") == refusal.reason
    wanted = None if refusal.retry_after_s is None else str(refusal.retry_after_s)
    assert answered.headers.get("retry-after") == wanted


def test_a_busy_answer_shows_how_the_queue_stood(client: Client, actors: FakeActors) -> None:
    view = QueueView(waiting=4, position=5, eta_ms=2_500)
    actors.answer = lambda submit: Refusal("capacity_exhausted", "d", "busy", 0, view)
    answered = client.execute(TRUE)
    assert answered.json["queue"] == {"waiting": 4, "position": 5, "eta_ms": 2_500}
    assert answered.headers["retry-after"] == "1"


def test_a_bad_body_is_refused_before_the_actors_hear_of_it(
    client: Client, actors: FakeActors
) -> None:
    for body in (b"", b"[]", b'{"steps": []}', b'{"steps": [{"cmd": "a", "args": ["\\ud800"]}]}'):
        assert client.execute(body).problem() == (400, "invalid_request")
    assert client.execute({"steps": [{"cmd": "a", "limits": {"pids": 0}}]}).status == 422
    assert actors.submitted == []


def test_an_answer_can_carry_any_text(client: Client) -> None:
    command = 'a/"\\\u2028\x7f😀\x01'
    answered = client.execute({"steps": [{"cmd": command}]})
    assert answered.json["results"][0]["stdout"] == command


def test_a_client_that_leaves_cancels_its_request(
    client: Client, actors: FakeActors, log: Callable[[], list[dict[str, Any]]]
) -> None:
    actors.answer = lambda submit: None
    client.request("POST", EXECUTE, [json.dumps(TRUE).encode()], leaves=True)
    assert actors.cancelled == [actors.submitted[0].ticket]
    assert [line["code"] for line in log()] == ["cancelled"]


def test_a_client_that_leaves_in_its_body_reaches_no_actor(
    client: Client, actors: FakeActors, log: Callable[[], list[dict[str, Any]]]
) -> None:
    client.request("POST", EXECUTE, [], leaves=True)
    assert actors.submitted == []
    assert [line["code"] for line in log()] == ["cancelled"]


def test_a_handler_that_is_cancelled_cancels_its_request(
    client: Client, actors: FakeActors, log: Callable[[], list[dict[str, Any]]]
) -> None:
    actors.answer = lambda submit: None

    async def run() -> None:
        handler = asyncio.ensure_future(
            client.exchange("POST", EXECUTE, [json.dumps(TRUE).encode()])
        )
        await asyncio.to_thread(actors.has_submit.wait, 20)
        handler.cancel()
        await asyncio.wait({handler})
        assert handler.cancelled()

    asyncio.run(run())
    assert actors.cancelled == [actors.submitted[0].ticket]
    assert [(line["status"], line["code"]) for line in log()] == [(None, "cancelled")]


def test_a_request_that_the_actors_lose_is_a_500(
    make_client: MakeClient, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaoler.http.bridge.LOST_AFTER_MS", 10)
    actors.answer = lambda submit: None
    client = make_client(queue_allowance_interactive_ms=0, runner_ttl_slack_ms=0)
    answered = client.execute({**TRUE, "budget_ms": 1})
    assert answered.problem() == (500, "internal_error")
    assert actors.cancelled == [actors.submitted[0].ticket]


def test_an_actor_that_answers_twice_is_heard_once(client: Client, actors: FakeActors) -> None:
    from_thread = actors.answer

    def twice(submit: Submit) -> Any:
        submit.reply(Refusal("draining", "first"))
        return from_thread(submit)

    actors.answer = twice
    assert client.execute(TRUE).problem() == (503, "draining")


def test_the_loop_goes_on_while_requests_wait(make_client: MakeClient, actors: FakeActors) -> None:
    actors.answer = lambda submit: None
    client = make_client()

    async def run() -> int:
        waiting = [
            asyncio.ensure_future(client.exchange("POST", EXECUTE, [json.dumps(TRUE).encode()]))
            for _ in range(20)
        ]
        while len(actors.submitted) < 20:
            await asyncio.sleep(0)
        health = await client.exchange("GET", HEALTH)
        for handler in waiting:
            handler.cancel()
        await asyncio.wait(waiting)
        return health.status

    assert asyncio.run(asyncio.wait_for(run(), 20)) == 200
    assert len(actors.cancelled) == 20


# --- bodies, keys, rates -------------------------------------------------------------------


def test_the_media_type_must_be_json(client: Client) -> None:
    for given in ("text/plain", "", "application/x-www-form-urlencoded"):
        answered = client.execute(TRUE, {"Content-Type": given})
        assert answered.problem() == (415, "unsupported_media_type")
    assert client.execute(TRUE, {"Content-Type": "application/json; charset=utf-8"}).status == 200


def test_a_body_too_large_is_refused_by_its_header_and_by_its_bytes(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaoler.http.body.LINGER_S", 0.01)
    client = make_client(execute_body_limit_bytes=50)
    declared = client.request(
        "POST", EXECUTE, [b"x" * 10], {"Content-Length": "51"}, never_ends=True
    )
    assert declared.problem() == (413, "body_too_large")
    found = client.request("POST", EXECUTE, [b"x" * 40, b"x" * 40], never_ends=True)
    assert found.problem() == (413, "body_too_large")


def test_bodies_beyond_the_common_bound_are_busy(make_client: MakeClient) -> None:
    answered = make_client(admitted_bytes=20).execute(TRUE)
    assert answered.problem() == (503, "capacity_exhausted")
    assert answered.json["reason"] == "busy"
    assert answered.headers["retry-after"] == "1"


def test_a_slow_body_is_a_400(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaoler.http.body.LINGER_S", 0.01)
    client = make_client(request_body_timeout_ms=10)
    answered = client.request("POST", EXECUTE, [b"{"], never_ends=True)
    assert answered.problem() == (400, "body_timeout")


def test_nothing_is_read_for_a_stranger_before_the_refusal(make_client: MakeClient) -> None:
    client = make_client(api_keys=(KEY,))
    for path in (EXECUTE, "/api/v1/nowhere"):
        assert client.request("POST", path, [b"x"] * 9).problem() == (401, "unauthorized")
        assert client.pieces_before_answer == 0


def test_a_stranger_is_one_whatever_the_method(make_client: MakeClient) -> None:
    client = make_client(api_keys=(KEY,))
    for method in ("FOO", "WEBSOCKET"):
        assert client.request(method, EXECUTE).problem() == (401, "unauthorized")


def test_next_to_nothing_of_a_strangers_body_is_read_after_the_refusal(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaoler.http.body.STRANGER_LINGER_S", 0.05)
    client = make_client(api_keys=(KEY,))
    pieces = [b"x" * 2**14] * 100
    assert client.request("POST", EXECUTE, pieces).problem() == (401, "unauthorized")
    assert client.pieces_read <= 4  # 64 KiB


def test_a_key_opens_the_api_and_its_id_is_logged_instead_of_it(
    make_client: MakeClient, actors: FakeActors, log: Callable[[], list[dict[str, Any]]]
) -> None:
    client = make_client(api_keys=(KEY,))
    assert client.execute(TRUE, {"Authorization": f"Bearer {KEY}"}).status == 200
    assert client.execute(TRUE, {"X-API-Key": KEY}).status == 200
    assert client.execute(TRUE, {"X-API-Key": KEY[1:]}).status == 401
    ids = [line["key_id"] for line in log()]
    assert ids[0] == ids[1] == actors.submitted[0].key_id != ""
    assert ids[2] == ""
    assert KEY not in json.dumps(log())


def test_the_log_line_says_what_the_queue_was_told_and_where_the_time_went(
    make_client: MakeClient, actors: FakeActors, log: Callable[[], list[dict[str, Any]]]
) -> None:
    """`gaoler plan --log` replays it, refused requests too; a body that was no request is none."""
    client = make_client()
    body = {**TRUE, "priority": "grading", "evaluation_id": "quiz", "wait": False}
    assert client.execute(body).status == 200
    actors.answer = lambda submit: Refusal("capacity_exhausted", "full", "busy", 3)
    assert client.execute(TRUE).status == 503
    assert client.execute({"steps": []}).status == 400
    answered, refused, invalid = log()
    told = {name: answered[name] for name in ("priority", "slots", "evaluation_id", "wait")}
    assert told == {"priority": "grading", "slots": 1, "evaluation_id": "quiz", "wait": False}
    assert answered["memory_bytes"] == actors.submitted[0].job.memory_bytes
    assert answered["budget_ms"] == actors.submitted[0].budget_ms
    assert {"queued_ms", "setup_ms", "run_ms"} <= answered.keys()
    assert refused["budget_ms"] == actors.submitted[1].budget_ms
    assert "run_ms" not in refused
    assert "budget_ms" not in invalid


def test_health_never_needs_a_key(make_client: MakeClient) -> None:
    assert make_client(api_keys=(KEY,)).request("GET", HEALTH).json == {"status": "ok"}


def test_a_keys_rate_comes_before_its_body(make_client: MakeClient) -> None:
    seen: list[str] = []

    def spend(key_id: str) -> int | None:
        seen.append(key_id)
        return 9 if len(seen) > 1 else None

    client = make_client({"spend_arrival": spend}, api_keys=(KEY,))
    assert client.execute(TRUE, {"X-API-Key": KEY}).status == 200
    answered = client.execute(TRUE, {"X-API-Key": KEY, "Content-Type": "text/plain"})
    assert answered.problem() == (429, "rate_limited")
    assert answered.headers["retry-after"] == "9"
    assert client.pieces_before_answer == 0
    assert client.execute(TRUE).status == 401
    assert len(seen) == 2


# --- routes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v1/no-such-route", "/api/v1/health/", "/internal/queue", "/internal/health", "/\0"],
)
def test_an_unknown_route_is_a_404(client: Client, path: str) -> None:
    assert client.request("GET", path).problem() == (404, "not_found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "FOO", "WEBSOCKET"])
def test_a_wrong_method_is_a_405_that_says_which_is_right(client: Client, method: str) -> None:
    answered = client.request(method, EXECUTE)
    assert answered.problem() == (405, "method_not_allowed")
    assert "POST" in answered.headers["allow"]


def test_head_of_health_is_health_without_a_body(client: Client) -> None:
    answered = client.request("HEAD", HEALTH)
    assert (answered.status, answered.body) == (200, b"")


def test_options_names_the_methods(client: Client) -> None:
    answered = client.request("OPTIONS", EXECUTE)
    assert answered.status < 500
    assert "POST" in answered.headers["allow"]


def test_health_says_what_is_missing(make_client: MakeClient) -> None:
    for code in ("not_ready", "draining", "shutting_down"):
        ready = {"ready": lambda code=code: Refusal(code, "the warden is not there")}
        answered = make_client(ready).request("GET", HEALTH)
        assert answered.problem() == (503, code)
        assert answered.json["detail"] == "the warden is not there"


def test_a_stub_says_so(make_client: MakeClient) -> None:
    client = make_client(runner_mode="stub")
    assert client.request("GET", HEALTH).json == {"status": "ok", "stub": True}
    assert client.execute(TRUE).json["results"][0]["stub"] is True


def test_a_stub_says_so_to_operators(make_client: MakeClient) -> None:
    client = make_client({"ask_warden": lambda reply: False}, internal=True, runner_mode="stub")
    assert client.request("GET", "/internal/health").json == {
        "status": "ok",
        "actors": {"Admission": "ok"},
        "service": "ready",
        "warden": "stub: nothing is run",
        "layers": {"sandbox": "stub: nothing is run"},
        "stub": True,
    }


def test_all_is_answered_once_what_had_come_has_its_answer(make_client: MakeClient) -> None:
    """What comes later is not waited for."""
    client = make_client()

    async def run() -> None:
        first, later = (asyncio.Event() for _ in range(2))
        requests = [asyncio.create_task(_unread(client, first))]
        await asyncio.sleep(0)
        answered = asyncio.create_task(client._front.answered())
        await asyncio.sleep(0)
        requests.append(asyncio.create_task(_unread(client, later)))
        await asyncio.sleep(0)
        assert not answered.done()
        first.set()
        await answered
        assert not requests[1].done()
        later.set()
        await asyncio.gather(*requests)
        await client._front.answered()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


async def _unread(client: Client, read: asyncio.Event) -> None:
    """A request whose answer is not taken before that."""

    async def send(message: object) -> None:
        await read.wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "path": HEALTH,
        "query_string": b"",
        "headers": [],
        "server": ("127.0.0.1", 8300),
        "client": ("127.0.0.1", 1),
    }
    await client._front(scope, receive, send)


def test_the_internal_address_serves_the_internal_routes_alone(
    make_client: MakeClient, actors: FakeActors
) -> None:
    actors.picture = {
        "queue": {"slots": {"total": 2, "free": 1}, "counters": {"granted": 3}},
        "caps": {"attempts": 1},
        "requests": {"in_flight": {"queued": 2}, "replies": {"answered": 4}, "closed": None},
    }
    layers = {"landlock": "active", "oom_score_adj": "degraded: no CAP_SYS_RESOURCE"}
    client = make_client({"layers": lambda: layers}, internal=True)
    assert client.request("GET", "/internal/queue?rows=7").json == {
        "slots": {"total": 2, "free": 1},
        "caps": {"attempts": 1},
        "in_flight": {"queued": 2},
        "counters": {"granted": 3, "replies": {"answered": 4}},
    }
    assert actors.rows == 7
    assert client.request("GET", "/internal/health").json == {
        "status": "ok",
        "actors": {"Admission": "ok"},
        "warden": {"jails": 0, "uids_free": 100, "quarantined": 0},
        "service": "ready",
        "layers": layers,
    }
    assert client.request("POST", EXECUTE, [b"{}"]).problem() == (404, "not_found")
    assert client.request("GET", HEALTH).problem() == (404, "not_found")


def test_the_internal_health_shows_a_silent_actor_and_a_missing_warden(
    make_client: MakeClient, actors: FakeActors
) -> None:
    actors.alive = {"Admission": True, "SlotQueue": False}
    answered = make_client(internal=True).request("GET", "/internal/health")
    assert answered.problem() == (503, "not_ready")
    assert answered.json["actors"] == {"Admission": "ok", "SlotQueue": "silent"}
    missing = {"ready": lambda: Refusal("not_ready", "no warden")}
    answered = make_client(missing, internal=True).request("GET", "/internal/health")
    assert answered.json["service"] == "not_ready: no warden"
    silent = {"ask_warden": lambda reply: False}
    actors.alive = {"Admission": True}
    answered = make_client(silent, internal=True).request("GET", "/internal/health")
    assert answered.problem() == (503, "not_ready")
    assert answered.json["warden"] == "silent"


def test_a_queue_that_does_not_answer_is_a_503(
    make_client: MakeClient, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(internal=True)
    assert client.request("GET", "/internal/queue").problem() == (503, "not_ready")
    monkeypatch.setattr("gaoler.http.bridge.PATIENCE_S", 0.01)
    monkeypatch.setattr(actors, "inspect", lambda reply, rows: True)
    assert client.request("GET", "/internal/queue").problem() == (503, "not_ready")


@pytest.mark.parametrize("rows", ["-1", "1001", "10000", "x", "", "1.0"])
def test_a_number_of_rows_that_is_none_is_refused_by_name(
    make_client: MakeClient, actors: FakeActors, rows: str
) -> None:
    answered = make_client(internal=True).request("GET", f"/internal/queue?rows={rows}")
    assert answered.problem() == (400, "invalid_request")
    assert answered.json["detail"].startswith("rows: ")


NO_REQUESTS: dict[str, object] = {"in_flight": {}, "replies": {}}


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("0.0.0.0", 401)])
def test_the_internal_api_needs_a_key_only_beyond_loopback(
    make_client: MakeClient, actors: FakeActors, host: str, status: int
) -> None:
    actors.picture = {"queue": {"counters": {}}, "caps": {}, "requests": NO_REQUESTS}
    client = make_client(internal=True, internal_bind=(host, 8301), api_keys=(KEY,))
    assert client.request("GET", "/internal/queue").status == status
    assert client.request("GET", "/internal/queue", headers={"X-API-Key": KEY}).status == 200


# --- slips of ours, and the log ------------------------------------------------------------


def test_an_unforeseen_error_is_a_500_that_gives_nothing_away(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    log: Callable[[], list[dict[str, Any]]],
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret /etc/gaoler/keys")

    monkeypatch.setattr(routes, "decode", broken)
    answered = client.execute(TRUE)
    assert answered.problem() == (500, "internal_error")
    for word in (b"secret", b"Traceback", b".py", b"RuntimeError"):
        assert word not in answered.body
    error, request = log()
    assert (error["event"], error["error"]) == ("unforeseen_error", "RuntimeError")
    assert any("broken" in frame for frame in error["frames"])
    assert "secret" not in json.dumps(log())
    assert error["request_id"] == request["request_id"] == answered.json["request_id"]


def test_every_request_writes_one_line_without_anything_of_its_content(
    client: Client, log: Callable[[], list[dict[str, Any]]]
) -> None:
    client.execute({"steps": [{"cmd": "hush", "env": {"A": "hush"}, "stdin": "hush"}]})
    client.execute(b"hush")
    client.request("GET", "/x" * 500)
    lines = log()
    assert [(line["event"], line["status"], line["code"]) for line in lines] == [
        ("request", 200, None),
        ("request", 400, "invalid_request"),
        ("request", 404, "not_found"),
    ]
    assert all(isinstance(line["duration_ms"], int) for line in lines)
    assert (lines[0]["method"], lines[0]["path"]) == ("POST", EXECUTE)
    assert len(lines[2]["path"]) == 200
    assert "hush" not in json.dumps(lines)


# --- lifespan ------------------------------------------------------------------------------


def live(front: Front) -> list[Mapping[str, Any]]:
    """What the application says in a whole life."""
    said: list[Mapping[str, Any]] = []
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Mapping[str, Any]:
        return events.pop(0)

    async def send(message: Mapping[str, Any]) -> None:
        said.append(message)

    asyncio.run(front({"type": "lifespan"}, receive, send))
    return said


def test_services_start_and_stop_with_the_lifespan(actors: FakeActors) -> None:
    order: list[str] = []

    async def start() -> Services:
        order.append("start")
        return Services(actors, ready=lambda: None)

    async def stop() -> None:
        order.append("stop")

    said = live(Front(Settings(), start, stop))
    assert [each["type"] for each in said] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert order == ["start", "stop"]


def test_a_failed_start_and_a_failed_stop_are_told() -> None:
    async def fails() -> Any:
        raise RuntimeError("no warden at /run/x")

    async def fine() -> Any:
        return Services(actors=None, ready=lambda: None)  # type: ignore[arg-type]

    assert live(Front(Settings(), fails, fails)) == [
        {"type": "lifespan.startup.failed", "message": "no warden at /run/x"}
    ]
    assert live(Front(Settings(), fine, fails))[-1]["type"] == "lifespan.shutdown.failed"
