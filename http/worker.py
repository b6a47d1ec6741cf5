"""gunicorn's asgi worker, with our words where gunicorn refuses a connection by itself, and
an end to connections that it would keep for ever.

What is not HTTP (a malformed request line, headers past gunicorn's limits, a broken chunk)
never becomes an ASGI scope, so the application cannot answer it.  gunicorn would answer in
plain text and log nothing; clients are promised problem+json and an X-Request-Id, operators
one line for each request.

gunicorn has a time limit for connections that are idle between two requests, and none for a
client that never ends a request's head or that does not read its answer.

This leans on names that gunicorn does not promise to keep: `ASGIProtocol` in the worker's
module, and every underscored method that `ProblemProtocol` overrides or calls, with
`_current_request` and `_callback_parser`.  tests/http/test_worker.py and test_sockets.py say
so where one is gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

from gunicorn.asgi.parser import UnsupportedTransferCoding  # type: ignore[import-untyped]
from gunicorn.asgi.protocol import ASGIProtocol  # type: ignore[import-untyped]
from gunicorn.workers import gasgi  # type: ignore[import-untyped]

from gaoler.http import errors
from gaoler.http.app import Front
from gaoler.http.context import CUT_OFF_KEY, Scope, request_id_of, write_log_line
from gaoler.http.errors import Problem
from gaoler.http.paths import quoted

# From a connection's start, or from the first byte of a later request, to the end of the
# request's head.
HEAD_S = 10.0

# A client that has taken less than this much of its answer in so long has stopped reading.
UNREAD_ANSWER_S = 30.0
UNREAD_ANSWER_BYTES = 64 << 10

# RFC 9112, section 3.2.2: what is said to proxies must be understood from all.
_ABSOLUTE_FORM = re.compile(rb"https?://[^/]+", re.IGNORECASE)


class ProblemProtocol(ASGIProtocol):  # type: ignore[misc]
    """One connection."""

    _given_to_the_application: object = None  # the last request that was
    _in_a_head: bool = False  # some of a request's head has come, and not all of it
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    # --- time limits -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self.worker.nr_conns > self.worker.worker_connections:
            transport.abort()  # gunicorn has the setting, and this worker does not look at it
            return
        # Whatever the kernel does not take at once counts as unread.  Below gunicorn's mark
        # it would lie in the transport unseen, and closing waits until it is gone.
        transport.set_write_buffer_limits(high=0)
        self.worker.open_connections.add(self)
        self._await_head()

    def _await_head(self) -> None:
        """Close the connection unless a head is complete in time."""
        if self._head_timer is None:
            self._cancel_keepalive_timer()
            # What gunicorn does when its own time limit is over is right here too.
            self._head_timer = self.worker.loop.call_later(HEAD_S, self._keepalive_timeout)

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _arm_keepalive_timer(self) -> None:
        if self._head_timer is None:  # else the connection is not idle
            super()._arm_keepalive_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def _await_reader(self) -> None:
        """Drop a client that takes next to nothing; a slow one may take its time."""
        unread = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() > unread - UNREAD_ANSWER_BYTES:
                self.transport.abort()
            else:
                self._await_reader()

        self._unread_timer = self.worker.loop.call_later(UNREAD_ANSWER_S, look)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_awaiting_reader()

    def _stop_awaiting_reader(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def close_if_idle(self) -> None:
        """For a worker that ends: gunicorn would wait for whoever might say something yet."""
        # A request that is whole is there before the connection's own loop has woken up to it.
        begun = self._in_a_head or self._current_request is not None
        if self._awaiting_request and not begun:
            self._keepalive_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.open_connections.discard(self)
        self._stop_awaiting_head()
        self._stop_awaiting_reader()
        super().connection_lost(exc)

    # --- what is not HTTP, or not ours -----------------------------------------------------

    def _feed_callback_parser(self, data: bytes) -> bool:
        try:
            goes_on: bool = super()._feed_callback_parser(data)
        except ValueError:  # gunicorn takes a Content-Length of any number of digits for an int
            self._send_error_response(400, "")
            self._close_transport()
            return False
        if goes_on and self._current_request is None:
            self._in_a_head = True
            self._await_head()
        return goes_on

    def _on_headers_complete(self) -> bool:
        self._in_a_head = False
        self._stop_awaiting_head()
        # gunicorn takes the names of compressions and then takes the body as it is.
        for name, value in self._callback_parser.headers:
            if name == b"transfer-encoding":
                for coding in value.split(b","):
                    if coding.strip().lower() != b"chunked":
                        raise UnsupportedTransferCoding(coding.strip().decode("latin-1"))
        skips_body: bool = super()._on_headers_complete()
        return skips_body

    def _build_http_scope(self, request: Any, *rest: Any) -> Scope:
        scope: Scope = super()._build_http_scope(request, *rest)
        scope[CUT_OFF_KEY] = self.transport.abort
        absolute = _ABSOLUTE_FORM.match(scope["raw_path"])
        if absolute is not None:
            raw_path = scope["raw_path"][absolute.end() :] or b"/"
            path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
            scope.update(raw_path=raw_path, path=path)
        return scope

    def _will_close(self, request: Any, response_requires_close: bool) -> bool:
        """HTTP/1.0 is always closed: an answer in pieces has no other end there."""
        closes: bool = super()._will_close(request, response_requires_close)
        return closes or request.version < (1, 1)

    async def _handle_http_request(self, request: object, *rest: object) -> object:
        self._given_to_the_application = request
        return await super()._handle_http_request(request, *rest)

    def _send_error_response(
        self, status: int, message: str, extra_headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        del extra_headers
        request = self._current_request  # None where not even its head could be read
        request_id = request_id_of(request.headers_bytes if request is not None else [])
        phrase = HTTPStatus(status).phrase
        code = errors.code_of_status(status)
        detail = f"not taken: {phrase}"  # in general the message may quote anything at all
        if status == HTTPStatus.NOT_IMPLEMENTED:
            detail = f"the transfer coding {quoted(message)} is not taken, chunked alone is"
        body = errors.render(Problem(code, detail, status=status), request_id)
        self._safe_write(
            f"HTTP/1.1 {status} {phrase}\r\n"
            f"Content-Type: {errors.MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"X-Request-Id: {request_id}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        if request is None or request is not self._given_to_the_application:
            write_log_line({"request_id": request_id, "status": status, "code": code})
        # Else the application, which is about to hear that the client is gone, writes it.

    def _is_websocket_upgrade(self, request: object) -> bool:
        """Never: the Upgrade header is ignored and the request is an ordinary one."""
        del request
        return False


class Worker(gasgi.ASGIWorker):  # type: ignore[misc]
    """The worker class to be named in gunicorn's settings."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.open_connections: set[ProblemProtocol] = set()

    def handle_exit_signal(self) -> None:
        """SIGTERM: gunicorn waits for the answers under way, so what they wait for must end."""
        super().handle_exit_signal()
        self._begin_stop()

    def handle_quit_signal(self) -> None:
        super().handle_quit_signal()
        self._begin_stop()

    def _begin_stop(self) -> None:
        front = getattr(self, "asgi", None)  # None where the signal came before it was loaded
        if isinstance(front, Front):
            front.begin_stop()
        for connection in list(self.open_connections):
            connection.close_if_idle()

    def init_process(self) -> None:
        # The worker makes its connections by this name.  It is set here, in the worker's own
        # process, so that importing this module changes nothing.
        gasgi.ASGIProtocol = ProblemProtocol
        super().init_process()
