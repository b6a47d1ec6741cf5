"""The resources behind the routes, and what a Falcon application does with their refusals."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import falcon
import falcon.asgi
from falcon.asgi import Request, Response

from gaoler.actors.messages import Refusal
from gaoler.actors.policy.picture import MOST_ROWS, USUAL_ROWS
from gaoler.config.settings import Settings
from gaoler.http import errors
from gaoler.http.admit import Admitted, FileStore, NoFiles, admit
from gaoler.http.answers import execute_answer, kept_bytes, times_of
from gaoler.http.auth import Keys
from gaoler.http.body import AdmittedBytes, Checking, Share, check_headers, read_body
from gaoler.http.bridge import Actors, Bridge, ask
from gaoler.http.context import Context, context_of
from gaoler.http.decode import decode
from gaoler.http.errors import ClientGone, Problem, invalid
from gaoler.http.large import LARGE_BYTES, UnsentAnswers
from gaoler.http.schemas import Bounds, ExecuteGiven, read_execute

logger = logging.getLogger(__name__)

_SILENT = "silent"
_NOTHING_IS_RUN = "stub: nothing is run"
_STUB_STATE = {
    "warden": _NOTHING_IS_RUN,
    "layers": {"sandbox": _NOTHING_IS_RUN},
    "stub": True,
}

EXECUTE = "/api/v1/execute"
HEALTH = "/api/v1/health"


def _no_rate(key_id: str) -> int | None:
    del key_id
    return None


def _no_layers() -> dict[str, str]:
    return {}


def _no_warden(reply: Callable[[Mapping[str, int]], None]) -> bool:
    del reply
    return False


@dataclass(frozen=True, slots=True)
class Services:
    """What the composition root hands to the HTTP room.  No callable in it may block."""

    actors: Actors
    # None when new requests are welcome, else a refusal with code not_ready, draining or
    # shutting_down whose detail says what is missing.
    ready: Callable[[], Refusal | None]
    # Each isolation layer: "active", "degraded: why" or "missing".
    layers: Callable[[], Mapping[str, str]] = _no_layers
    # Asks the warden how it is: jails, uids_free, quarantined.  False where there is none.
    ask_warden: Callable[[Callable[[Mapping[str, int]], None]], bool] = _no_warden
    # Takes one token of the key's rate.  None where there was one, else seconds to the next.
    spend_arrival: Callable[[str], int | None] = _no_rate
    files: FileStore = field(default_factory=NoFiles)


class Execute:
    """POST /api/v1/execute.  The order of the steps is docs/api.md's order of checks."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._bridge = Bridge(services.actors, settings)
        self._admitted_bytes = AdmittedBytes(settings.admitted_bytes)
        self._unsent = UnsentAnswers(settings.admitted_bytes)
        self._checking = Checking()
        self._bounds = Bounds(
            steps=settings.max_steps_per_request,
            parallel_tasks=settings.max_parallel_tasks,
            files=settings.workspace_inodes,
        )

    async def on_post(self, request: Request, response: Response) -> None:
        context = context_of(request.scope)
        self._spend_arrival(context.key_id)
        check_headers(request.headers_lower, self._settings.execute_body_limit_bytes)
        with self._admitted_bytes.share() as share:
            given, admitted = await self._read(context, share)
            await self._run(context, given, admitted, response)

    def _spend_arrival(self, key_id: str) -> None:
        retry_after_s = self._services.spend_arrival(key_id)
        if retry_after_s is not None:
            detail = "this key has sent too many requests"
            raise Problem("rate_limited", detail, retry_after_s=retry_after_s)

    async def _read(self, context: Context, share: Share) -> tuple[ExecuteGiven, Admitted]:
        settings = self._settings
        limit_bytes = settings.execute_body_limit_bytes
        timeout_ms = settings.request_body_timeout_ms
        body = await read_body(context.intake, share, limit_bytes, timeout_ms)
        return await self._checking.check(len(body), lambda: self._check(body, context))

    def _check(self, body: bytes | bytearray, context: Context) -> tuple[ExecuteGiven, Admitted]:
        given = read_execute(decode(body), self._bounds)
        files = self._services.files
        return given, admit(given, context.request_id, context.key_id, self._settings, files)

    async def _run(
        self, context: Context, given: ExecuteGiven, admitted: Admitted, response: Response
    ) -> None:
        context.work = admitted.log_fields()
        reply = await self._bridge.run(admitted, context.intake)
        if isinstance(reply, Refusal):
            raise problem_of(reply)
        context.work |= times_of(reply)
        stub = self._settings.runner_mode == "stub"
        answer = execute_answer(context.request_id, given, reply, stub=stub)
        held_bytes = kept_bytes(given, reply)
        response.content_type = falcon.MEDIA_JSON
        if held_bytes < LARGE_BYTES:
            response.data = errors.dump(answer)
        else:
            response.stream = self._unsent.send(answer, held_bytes, context.cut_off)


class Health:
    """GET /api/v1/health: ready for requests, or what is missing."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._stub = settings.runner_mode == "stub"
        self._services = services

    async def on_get(self, request: Request, response: Response) -> None:
        del request
        missing = self._services.ready()
        if missing is not None:
            raise problem_of(missing)
        body: dict[str, object] = {"status": "ok"}
        if self._stub:
            body["stub"] = True
        response.content_type = falcon.MEDIA_JSON
        response.data = errors.dump(body)

    on_head = on_get


class InternalHealth:
    """GET /internal/health: every actor, the way to the sandbox, every isolation layer."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._stub = settings.runner_mode == "stub"
        self._bridge = Bridge(services.actors, settings)
        self._services = services

    async def on_get(self, request: Request, response: Response) -> None:
        del request
        alive = await self._bridge.alive()
        missing = self._services.ready()
        state: dict[str, object] = {
            "actors": {name: "ok" if answers else "silent" for name, answers in alive.items()},
            "service": "ready" if missing is None else f"{missing.code}: {missing.detail}",
            **(_STUB_STATE if self._stub else await self._sandbox_state()),
        }
        if missing is not None:
            raise problem_of(missing, state)
        if not all(alive.values()):
            raise Problem("not_ready", "an actor does not answer", members=state)
        if state["warden"] == _SILENT:
            raise Problem("not_ready", "the warden does not answer", members=state)
        response.content_type = falcon.MEDIA_JSON
        response.data = errors.dump({"status": "ok", **state})

    async def _sandbox_state(self) -> dict[str, object]:
        warden = await ask(self._services.ask_warden)
        return {
            "warden": _SILENT if warden is None else dict(warden),
            "layers": dict(self._services.layers()),
        }


class Queue:
    """GET /internal/queue: what runs, what waits, what is free."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._bridge = Bridge(services.actors, settings)

    async def on_get(self, request: Request, response: Response) -> None:
        picture = await self._bridge.picture(_rows(request))
        if picture is None:
            raise Problem("not_ready", "the queue does not answer")
        queue, requests = picture["queue"], picture["requests"]
        counters = {**queue["counters"], "replies": requests["replies"]}
        body = {**queue, "caps": picture["caps"], "in_flight": requests["in_flight"]}
        response.content_type = falcon.MEDIA_JSON
        response.data = errors.dump({**body, "counters": counters})


def _rows(request: Request) -> int:
    """How many of those who wait are to be shown: the query's `rows`."""
    given = request.get_param("rows")
    if given is None:
        return USUAL_ROWS
    if re.fullmatch("[0-9]{1,4}", given) is None or int(given) > MOST_ROWS:
        raise invalid("rows", f"expected a whole number from 0 to {MOST_ROWS}")
    return int(given)


def problem_of(refusal: Refusal, members: Mapping[str, object] | None = None) -> Problem:
    """An actor's refusal as a problem, the state of the queue in its member `queue`."""
    more = dict(members or {})
    if refusal.queue is not None:
        more["queue"] = {
            "waiting": refusal.queue.waiting,
            "position": refusal.queue.position,
            "eta_ms": refusal.queue.eta_ms,
        }
    return Problem(
        refusal.code,
        refusal.detail,
        reason=refusal.reason,
        retry_after_s=refusal.retry_after_s,
        members=more,
    )


# --- the Falcon applications ---------------------------------------------------------------


class KeyCheck:
    """Middleware that identifies the key before anything else is looked at."""

    def __init__(self, keys: Keys, open_paths: tuple[str, ...]) -> None:
        self._keys = keys
        self._open_paths = open_paths

    async def process_request(self, request: Request, response: Response) -> None:
        del response
        if request.path not in self._open_paths:
            headers = request.scope["headers"]
            context_of(request.scope).key_id = self._keys.identify(headers)


Routes = Mapping[str, object]


FalconApp = falcon.asgi.App[Request, Response]


def falcon_app(routes: Routes, keys: Keys, open_paths: tuple[str, ...] = ()) -> FalconApp:
    """A Falcon application whose every refusal is a problem+json."""
    app: FalconApp = falcon.asgi.App(middleware=[KeyCheck(keys, open_paths)])
    for path, resource in routes.items():
        app.add_route(path, resource)
    app.add_error_handler(Exception, _on_unforeseen)
    app.add_error_handler(falcon.HTTPError, _on_framework_refusal)
    app.add_error_handler(ClientGone, _on_client_gone)
    app.add_error_handler(Problem, _on_problem)
    return app


def known_method(method: str) -> str:
    """The method, or where it is none of HTTP's own, one that no route takes.

    Falcon would refuse others with a 400; this way they get their 404 or 405, after the key
    was looked at.
    """
    return method if method in falcon.HTTP_METHODS else "TRACE"


async def _on_problem(
    request: Request, response: Response, problem: Problem, params: dict[str, Any], **_: Any
) -> None:
    del params
    context = context_of(request.scope)
    context.code = problem.code
    response.status = problem.status
    response.content_type = errors.MEDIA_TYPE
    response.data = errors.render(problem, context.request_id)
    for name, value in errors.headers(problem).items():
        response.set_header(name, value)


async def _on_client_gone(
    request: Request, response: Response, error: ClientGone, params: dict[str, Any], **_: Any
) -> None:
    del error
    await _on_problem(request, response, Problem("cancelled", "the client went away"), params)


async def _on_framework_refusal(
    request: Request, response: Response, error: falcon.HTTPError, params: dict[str, Any], **_: Any
) -> None:
    code = errors.code_of_status(error.status_code)
    allow = {name: value for name, value in _headers(error) if name.lower() == "allow"}
    detail = errors.CODES[code][1]
    await _on_problem(request, response, Problem(code, detail, headers=allow), params)


def _headers(error: falcon.HTTPError) -> list[tuple[str, str]]:
    given = error.headers or {}
    return list(given.items() if isinstance(given, Mapping) else given)


async def _on_unforeseen(
    request: Request, response: Response, error: Exception, params: dict[str, Any], **_: Any
) -> None:
    """A slip of ours: the client learns nothing of it, the log where it happened.

    The exception's own text is left out of the log: it may quote submitted code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    fields = {
        "request_id": context_of(request.scope).request_id,
        "error": type(error).__name__,
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    # Without exc_info, for the reason above.
    logger.error("unforeseen_error", extra={"fields": fields})
    problem = Problem("internal_error", "the request could not be handled")
    await _on_problem(request, response, problem, params)
