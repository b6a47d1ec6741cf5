"""The one ASGI callable that gunicorn serves on both addresses.

    connection ── Front ──┬── public Falcon app     (the request came in on BIND)
                          └── internal Falcon app   (it came in on INTERNAL_BIND)

The front gives every request its id, sends every answer's X-Request-Id, writes the one log
line, and leaves the connection so that an early refusal reaches a client that still sends.
Nothing is started here: what has a life is started by `start` in the lifespan, in the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gaoler.config.checks import is_loopback
from gaoler.config.settings import Settings
from gaoler.http.auth import Keys
from gaoler.http.body import Intake, Receive
from gaoler.http.context import (
    CUT_OFF_KEY,
    SCOPE_KEY,
    Context,
    Scope,
    request_id_of,
    write_log_line,
)
from gaoler.http.routes import (
    EXECUTE,
    HEALTH,
    Execute,
    Health,
    InternalHealth,
    Queue,
    Services,
    falcon_app,
    known_method,
)

logger = logging.getLogger(__name__)

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class Front:
    """The ASGI callable.

    Invariant: the two Falcon applications exist from the end of a successful start-up, or
    from the beginning where the services were there beforehand.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[], Awaitable[Services]],
        stop: Callable[[], Awaitable[None]],
        begin_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`start` is awaited in the worker before it serves, `stop` after the last answer.

        `begin_stop` is called when the worker is told to end, while answers are still to come.
        """
        self._settings = settings
        self._start = start
        self._stop = stop
        self.begin_stop = begin_stop
        self._public: Asgi | None = None
        self._internal: Asgi | None = None
        self._open: set[asyncio.Future[None]] = set()  # one for each request under way

    async def answered(self) -> None:
        """Return when every request that has come by now is answered, or its client gone."""
        if self._open:
            await asyncio.wait(set(self._open))

    def use(self, services: Services) -> None:
        """Build the two applications over running services."""
        settings = self._settings
        keys = Keys(settings.api_keys)
        beyond_loopback = not is_loopback(settings.internal_bind[0])
        self._public = falcon_app(
            {EXECUTE: Execute(settings, services), HEALTH: Health(settings, services)},
            keys,
            open_paths=(HEALTH,),
        )
        self._internal = falcon_app(
            {
                "/internal/health": InternalHealth(settings, services),
                "/internal/queue": Queue(settings, services),
            },
            keys if beyond_loopback else Keys(()),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # before accepting: a plain 403
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context(
            request_id=request_id_of(scope["headers"]),
            intake=Intake(receive),
            method=scope["method"],
            # A path may hold bytes that are no text; the log line must be writable.
            path=scope["path"].encode("utf-8", "backslashreplace").decode(),
            cut_off=scope.get(CUT_OFF_KEY, lambda: None),
        )
        scope[SCOPE_KEY] = context
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(ended)
        try:
            await self._answer(context, scope, send)
            await context.intake.linger(stranger=context.code == "unauthorized")
        finally:
            context.intake.drop()
            self._open.discard(ended)
            ended.set_result(None)

    async def _answer(self, context: Context, scope: Scope, send: Send) -> None:
        scope = {**scope, "method": known_method(scope["method"])}
        try:
            await self._app_for(scope)(scope, _no_body(), _Outgoing(context, send).send)
        except asyncio.CancelledError:
            context.code = "cancelled"  # gunicorn ends us after the client has gone
            raise
        finally:
            write_log_line(context.log_fields())

    def _app_for(self, scope: Scope) -> Asgi:
        """By the port alone: settings never give both addresses the same one."""
        server = scope.get("server")
        internal = server is not None and server[1] == self._settings.internal_bind[1]
        app = self._internal if internal else self._public
        assert app is not None  # gunicorn serves nothing before the start-up is complete
        return app

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            self.use(await self._start())
        except Exception as error:  # whatever it is, gunicorn must be told, or it waits
            logger.exception("startup_failed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        try:
            await self._stop()
        except Exception as error:  # as above
            logger.exception("shutdown_failed")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def build_app(settings: Settings, services: Services) -> Front:
    """The application over services that run already and are stopped by whoever made them."""

    async def start() -> Services:
        return services

    async def stop() -> None:
        return None

    front = Front(settings, start, stop)
    front.use(services)
    return front


class _Outgoing:
    """What goes out: the request id is added and the status is noted for the log."""

    def __init__(self, context: Context, send: Send) -> None:
        self._context = context
        self._send = send

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = self._with_our_headers(message)
        await self._send(message)

    def _with_our_headers(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        context = self._context
        context.status = message["status"]
        headers = [*message["headers"], (b"x-request-id", context.request_id.encode())]
        return {**message, "headers": headers}


def _no_body() -> Receive:
    """What Falcon gets to read: it asks for a first message before it looks at the request,
    and nothing must be read for a stranger.  The routes read the real one.
    """
    came = False

    async def receive() -> Mapping[str, Any]:
        nonlocal came
        if came:
            await asyncio.Event().wait()
        came = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive
