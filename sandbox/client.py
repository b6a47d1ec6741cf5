"""The worker's side of the warden's socket: starts jobs, tells listeners what comes back.

The only module of this room that the worker's actors import beside `job`.  One thread
reads the sockets of all running requests and calls their listeners; `start` and `cancel`
may be called from any thread and never wait.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gaoler.sandbox import wire
from gaoler.sandbox.job import Event, Failed, Finished, Job, TaskDone, TornDown

Listener = Callable[[Event], None]
# Gets the warden's counts: jails, uids_free, quarantined.
Pong = Callable[[Mapping[str, int]], None]

_LOG = logging.getLogger("gaoler.sandbox")
_RETRY_S = 0.1
# The warden is asked this often, and is not trusted with new jobs when it has said nothing
# for so long.
_PING_S = 2.0
_SILENT_S = 10.0
_READ = 1 << 18
_LONGEST_MESSAGE = 4096


@dataclass(slots=True, eq=False)
class _Request:
    """One job under way.  Touched by the client's thread only, but for `sock.shutdown`."""

    name: str
    listener: Listener
    sock: socket.socket
    decoder: wire.Decoder
    ended: bool = False  # Finished or Failed was told
    cancelled: bool = False
    quarantined: bool = False


@dataclass(slots=True, eq=False)
class RunningJob:
    """What `start` returns."""

    client: SandboxClient
    request: _Request | None  # None: nothing could be started

    def cancel(self) -> None:
        if self.request is not None:
            self.client._cancel(self.request)


@dataclass(slots=True)
class _Start:
    request: _Request
    theirs: socket.socket
    job: int
    message: bytes


@dataclass(eq=False)
class SandboxClient:
    """Runs jobs through the warden at `socket_path`; implements `actors.ports.Sandbox`."""

    socket_path: str
    longest_frame: int
    pids_overhead: int
    ttl_slack_ms: int
    quarantine_max: int  # with so many sandboxes that will not end, none is started any more

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._warden: socket.socket | None = None
        self._requests: set[_Request] = set()
        self._quarantined: dict[str, _Request] = {}
        self._count = 0
        self._closing = False
        self._heard_s = 0.0
        self._pings: dict[int, Pong] = {}
        self._thread = threading.Thread(target=self._loop, name="sandbox-client", daemon=True)

    # --- from any thread ---

    def open(self) -> None:
        """Start the thread; it connects, and connects again whenever the warden is new."""
        self._thread.start()

    def close(self) -> None:
        """End every request and the thread."""
        self._closing = True
        self._do(lambda: None)
        self._thread.join()

    def ready(self) -> str | None:
        if self._warden is None or time.monotonic() - self._heard_s > _SILENT_S:
            return "the warden does not answer"
        if len(self._quarantined) >= self.quarantine_max:
            return f"{len(self._quarantined)} sandboxes cannot be ended; is the kernel well?"
        return None

    def ping(self, reply: Pong) -> bool:
        """Ask the warden for its counts; False where none is there, no reply where it hangs."""
        if self._warden is None:
            return False
        self._do(lambda: self._send_ping(reply))
        return True

    def start(self, job: Job, listener: Listener) -> RunningJob:
        try:
            start = self._make_start(job, listener)
        except (OSError, MemoryError) as error:  # no descriptor or no memory for it here
            number = error.errno or 0 if isinstance(error, OSError) else 0
            failed = Failed("sandbox_setup_failed", f"make the job: {error!r}", number)
            self._do(lambda: self._say_not_started(listener, failed))
            return RunningJob(self, None)
        self._do(lambda: self._start(start))
        return RunningJob(self, start.request)

    def _make_start(self, job: Job, listener: Listener) -> _Start:
        ours, theirs = socket.socketpair()
        try:
            descriptor = wire.write_job(job)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        ours.setblocking(False)
        with self._lock:
            self._count += 1
            name = f"{job.request_id}/{self._count}"
        request = _Request(name, listener, ours, wire.Decoder(self.longest_frame))
        widest = max(sum(t.limits.pids for t in step.tasks) for step in job.steps)
        message = json.dumps(
            {
                "op": "run",
                "id": name,
                "memory_bytes": job.memory_bytes,
                "pids": widest + self.pids_overhead,
                "hard_ns": job.deadline_ns + (self.ttl_slack_ms + 500) * 1_000_000,
            }
        ).encode()
        return _Start(request, theirs, descriptor, message)

    def _cancel(self, request: _Request) -> None:
        self._do(lambda: self._carry_out_cancel(request))

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        os.eventfd_write(self._wake, 1)

    # --- the thread ---

    def _loop(self) -> None:
        next_try = next_ping = 0.0
        while not self._closing:
            if self._warden is None and time.monotonic() >= next_try:
                self._connect()
                next_try = time.monotonic() + _RETRY_S
            timeout = _PING_S if self._warden is not None else _RETRY_S
            for key, _ in self._selector.select(timeout):
                key.data()
            if time.monotonic() >= next_ping:
                next_ping = time.monotonic() + _PING_S
                self._send_ping(None)
        self._shut_down()

    def _woken(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while self._commands:
            self._commands.popleft()()

    def _shut_down(self) -> None:
        self._woken()
        self._lose_warden()
        self._selector.close()
        os.close(self._wake)

    def _connect(self) -> None:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return  # descriptors have run out; it is tried again
        try:
            sock.connect(self.socket_path)
        except OSError:
            sock.close()
            return
        sock.setblocking(False)
        self._heard_s = time.monotonic()
        self._warden = sock
        self._selector.register(sock, selectors.EVENT_READ, self._hear_warden)
        _LOG.info("warden_connected")

    def _lose_warden(self) -> None:
        """Its jailers have died with it, and its successor sweeps before it listens."""
        if self._warden is not None:
            self._selector.unregister(self._warden)
            self._warden.close()
            self._warden = None
            if not self._closing:
                _LOG.warning("warden_lost")
        for request in list(self._requests):
            self._read(request)  # what had arrived before
            self._end(request)
        for request in list(self._quarantined.values()):
            request.listener(TornDown())
        self._quarantined.clear()
        self._pings.clear()

    def _start(self, start: _Start) -> None:
        request = start.request
        self._requests.add(request)
        self._selector.register(request.sock, selectors.EVENT_READ, lambda: self._read(request))
        try:
            if self._warden is None:
                raise OSError(0, "no warden")
            socket.send_fds(self._warden, [start.message], [start.theirs.fileno(), start.job])
        except OSError as error:
            self._fail(request, Failed("unavailable", str(error)))
            self._end(request)
        finally:
            start.theirs.close()
            os.close(start.job)

    @staticmethod
    def _say_not_started(listener: Listener, failed: Failed) -> None:
        listener(failed)
        listener(TornDown())

    def _carry_out_cancel(self, request: _Request) -> None:
        if request in self._requests and not request.ended:
            request.cancelled = True
            self._fail(request, Failed("cancelled", "cancel"))
        if request in self._requests:
            # The warden sees the hang-up and tears the jail down; we go on reading until
            # it lets go of its end.
            self._shut_writing(request)

    @staticmethod
    def _shut_writing(request: _Request) -> None:
        try:
            request.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _read(self, request: _Request) -> None:
        """Take what has arrived; end of file means torn down."""
        while request in self._requests:
            try:
                data = request.sock.recv(_READ)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._end(request)
                return
            self._take(request, data)

    def _take(self, request: _Request, data: bytes) -> None:
        if request.ended:
            return  # whatever follows an end is not even kept
        try:
            for kind, payload in request.decoder.feed(data):
                if not request.ended:
                    self._tell(request, kind, payload)
        except wire.ProtocolError as error:
            _LOG.error("bad_frame", extra={"fields": {"error": str(error)}})
            self._fail(request, Failed("internal_error", f"bad frame: {error}"))
            self._shut_writing(request)

    def _tell(self, request: _Request, kind: int, payload: bytes) -> None:
        if kind == wire.TASK_DONE:
            step, task, result = wire.unpack_result(payload)
            request.listener(TaskDone(step, task, result))
            return
        message = wire.read_json(payload)
        if kind == wire.FINISHED and type(message.get("exec_ns")) is int:
            request.ended = True
            request.listener(Finished(message["exec_ns"]))
        elif kind == wire.FAILED:
            code, stage, number = (message.get(n) for n in ("code", "stage", "errno"))
            known = code if code in ("sandbox_setup_failed", "internal_error") else "internal_error"
            self._fail(request, Failed(known, str(stage), number if type(number) is int else 0))
        else:
            raise wire.ProtocolError(f"a frame of kind {kind}")

    def _fail(self, request: _Request, failed: Failed) -> None:
        if not request.ended:
            request.ended = True
            request.listener(failed)

    def _end(self, request: _Request) -> None:
        """The socket has closed: nothing of the jail is left, unless it is quarantined."""
        if request in self._requests:
            # The warden says "quarantined" before it closes the socket.
            self._hear_warden()
        if request not in self._requests:
            return  # the warden was lost, and this request with it
        self._requests.discard(request)
        self._selector.unregister(request.sock)
        request.sock.close()
        self._fail(request, Failed("internal_error", "the sandbox died"))
        if request.quarantined:
            self._quarantined[request.name] = request
        request.listener(TornDown(quarantined=request.quarantined))

    # --- the warden's own words ---

    def _hear_warden(self) -> None:
        while self._warden is not None:
            try:
                data = self._warden.recv(_LONGEST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose_warden()
                return
            try:
                message = wire.read_json(data)
            except wire.ProtocolError as error:
                # As it does with a worker that talks nonsense; it ends what it ran for us.
                _LOG.error("bad_message", extra={"fields": {"error": str(error)}})
                self._lose_warden()
                return
            self._heard_s = time.monotonic()
            self._obey(message)

    def _obey(self, message: Mapping[str, object]) -> None:
        operation, name = message.get("op"), str(message.get("id"))
        if operation == "pong":
            self._hear_pong(message)
        elif operation == "quarantined":
            for request in self._requests:
                if request.name == name:
                    request.quarantined = True
        elif operation == "released" and name in self._quarantined:
            self._quarantined.pop(name).listener(TornDown())

    def _send_ping(self, reply: Pong | None) -> None:
        if self._warden is None:
            return
        with self._lock:
            self._count += 1
            number = self._count
        try:
            self._warden.send(json.dumps({"op": "ping", "n": number}).encode())
            if reply is not None:
                self._pings[number] = reply
        except OSError:
            pass  # it is stuck or gone: no pong, which says so

    def _hear_pong(self, message: Mapping[str, object]) -> None:
        number = message.get("n")
        reply = self._pings.pop(number, None) if type(number) is int else None
        if reply is not None:
            names = ("jails", "uids_free", "quarantined")
            counts = {name: message.get(name) for name in names}
            reply({name: count for name, count in counts.items() if type(count) is int})
