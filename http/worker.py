"""gunicorn's asgi worker, with our words where gunicorn refuses a connection by itself.

What is not HTTP (a malformed request line, headers past gunicorn's limits, a broken chunk)
never becomes an ASGI scope, so the application cannot answer it.  gunicorn would answer in
plain text and log nothing; clients are promised problem+json and an X-Request-Id, operators
one line for each request.

This leans on names that gunicorn does not promise to keep: `ASGIProtocol` in the worker's
module, `_send_error_response`, `_handle_http_request`, `_is_websocket_upgrade` and
`_current_request`.  Without them its own answers come back, and tests/http/test_sockets.py
says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from gunicorn.asgi.protocol import ASGIProtocol  # type: ignore[import-untyped]
from gunicorn.workers import gasgi  # type: ignore[import-untyped]

from gaoler.http import errors
from gaoler.http.app import Front
from gaoler.http.context import request_id_of, write_log_line
from gaoler.http.errors import Problem


class ProblemProtocol(ASGIProtocol):  # type: ignore[misc]
    """One connection."""

    _given_to_the_application: object = None  # the last request that was

    async def _handle_http_request(self, request: object, *rest: object) -> object:
        self._given_to_the_application = request
        return await super()._handle_http_request(request, *rest)

    def _send_error_response(
        self, status: int, message: str, extra_headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        del message, extra_headers  # the message may quote what the client sent
        request = self._current_request  # None where not even its head could be read
        request_id = request_id_of(request.headers_bytes if request is not None else [])
        phrase = HTTPStatus(status).phrase
        code = errors.code_of_status(status)
        body = errors.render(Problem(code, f"not taken: {phrase}", status=status), request_id)
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

    def init_process(self) -> None:
        # The worker makes its connections by this name.  It is set here, in the worker's own
        # process, so that importing this module changes nothing.
        gasgi.ASGIProtocol = ProblemProtocol
        super().init_process()
