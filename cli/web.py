"""The web process: gunicorn, its one worker, and in the worker every actor.

runs as      the service user; no capability in any set, no_new_privs
parent       `gaoler serve`; child: gunicorn's one asgi worker
descriptors  the listening sockets, which `gaoler serve` has bound; an end of the drain line;
             in the worker the connection to the warden
dies when    `gaoler serve` ends or asks it to

This is the worker's composition root: the only place that knows HTTP, actors and the
sandbox's client together.  Nothing has a life before the worker's lifespan start-up,
since neither threads nor actors survive gunicorn's fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from gaoler.actors import system as actor_system
from gaoler.actors.messages import Refusal
from gaoler.actors.policy.rates import Rates, whole_seconds
from gaoler.actors.ports import Sandbox
from gaoler.actors.stub_sandbox import StubSandbox
from gaoler.actors.system import System
from gaoler.cli import drain_line, logs, specs
from gaoler.config.settings import Settings
from gaoler.http.app import Front
from gaoler.http.routes import Services
from gaoler.sandbox import process, syscalls
from gaoler.sandbox.client import SandboxClient

_LOG = logging.getLogger("gaoler.web")
# Idle connections are closed after this; a client that reuses one saves a handshake.
_KEEP_ALIVE_S = 30
_WORKER_STUCK_S = 60
_MOST_CONNECTIONS = 100_000
# Descriptors that are no connection: our own, and for each slot those of a request that runs.
_OWN_DESCRIPTORS = 256
_DESCRIPTORS_EACH_SLOT = 4


class Web:
    """What lives in the worker, from its lifespan start-up to its end."""

    def __init__(
        self, settings: Settings, instance: str, layers: dict[str, str], line: int
    ) -> None:
        """`line`: the worker's end of the drain line."""
        self.front = Front(settings, self.start, self.stop, self.begin_stop)
        self._settings = settings
        self._instance = instance
        self._layers = layers
        self._line = line
        self._client: SandboxClient | None = None  # a stub has none
        self._sandbox: Sandbox | None = None
        self._system: System | None = None
        self._stopping = False
        self._arrivals = Rates(settings.rate_limit_per_minute)
        self._draining = False
        self._answering: asyncio.Task[None] | None = None

    async def start(self) -> Services:
        """Start the sandbox's client and the actors; wait for the warden a little while."""
        logs.configure(self._settings.log_level)
        faulthandler.register(signal.SIGUSR1)
        self._sandbox = self._open_sandbox()
        self._system = actor_system.start(self._settings, self._sandbox, _die)
        self._listen_to_drain_line()
        return Services(
            actors=self._system,
            ready=self._missing,
            layers=lambda: self._layers,
            ask_warden=self._ask_warden,
            spend_arrival=self._spend_arrival,
        )

    async def stop(self) -> None:
        self._stopping = True
        limit_s = self._settings.shutdown_timeout_ms / 1000
        if self._system is not None:
            await asyncio.to_thread(self._system.stop, limit_s)
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    def begin_stop(self) -> None:
        """SIGTERM: what runs is ended at once, so that its clients still get their answer."""
        self._stopping = True
        if self._system is not None:
            self._system.shut_down()

    def _spend_arrival(self, key_id: str) -> int | None:
        """From the event loop alone: RATE_LIMIT_PER_MINUTE, before anything is read."""
        wait_ns = self._arrivals.take(key_id, time.monotonic_ns())
        return None if wait_ns is None else whole_seconds(wait_ns)

    def _open_sandbox(self) -> Sandbox:
        if self._settings.runner_mode == "stub":
            return StubSandbox()
        self._client = specs.make_client(self._settings, self._instance)
        self._client.open()
        return self._client

    def _ask_warden(self, reply: Callable[[Mapping[str, int]], None]) -> bool:
        return self._client is not None and self._client.ping(reply)

    def _missing(self) -> Refusal | None:
        if self._stopping:
            return Refusal("shutting_down", "the service is shutting down")
        if self._draining:
            return Refusal("draining", "the service takes no new requests")
        assert self._sandbox is not None
        missing = self._sandbox.ready()
        return None if missing is None else Refusal("not_ready", missing)

    # --- drain ---

    def _listen_to_drain_line(self) -> None:
        """In a service that drains already, before the first request is taken."""
        if drain_line.is_asked(self._line):
            self._begin_drain()
        else:
            asyncio.get_running_loop().add_reader(self._line, self._begin_drain)

    def _begin_drain(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._line)  # it would be ready for ever
        assert self._system is not None
        self._draining = True
        _LOG.info("draining")

        def note_idle() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we end otherwise
                loop.call_soon_threadsafe(self._answer_the_last)

        self._system.drain(note_idle)

    def _answer_the_last(self) -> None:
        self._answering = asyncio.create_task(self._say_drained())

    async def _say_drained(self) -> None:
        """Nothing runs or waits any more, but an answer may still be on its way."""
        await self.front.answered()
        drain_line.say_done(self._line)


def _die(actor: str, error: BaseException | None) -> None:
    """A long-lived actor died of an exception: a bug.  Gunicorn starts a clean worker."""
    _LOG.critical("actor_died", extra={"fields": {"actor": actor, "error": repr(error)}})
    # From a thread of its own: we are called from the dying actor's.
    threading.Thread(target=os._exit, args=(70,), daemon=True).start()


class Gunicorn(BaseApplication):  # type: ignore[misc]
    """Gunicorn with settings of ours and no configuration file."""

    def __init__(self, settings: Settings, front: Front, listening: Sequence[int]) -> None:
        """`listening`: descriptors of sockets that listen, which become gunicorn's."""
        self._settings = settings
        self._front = front
        self._listening = listening
        super().__init__()

    def load_config(self) -> None:
        settings = self._settings
        chosen: dict[str, Any] = {
            "bind": [f"fd://{descriptor}" for descriptor in self._listening],
            "worker_class": "gaoler.http.worker.Worker",
            "workers": 1,
            "worker_connections": connections(settings.max_concurrency),
            "backlog": 2048,
            "keepalive": _KEEP_ALIVE_S,
            "timeout": _WORKER_STUCK_S,
            "graceful_timeout": max(1, settings.shutdown_timeout_ms // 1000),
            "asgi_lifespan": "on",
            "asgi_loop": "asyncio",
            "control_socket_disable": True,
            "accesslog": None,
            "errorlog": "-",
            "loglevel": "warning",
            "proc_name": "gaoler-web",
            "forwarded_allow_ips": "",
            "post_fork": _after_fork,
        }
        for name, value in chosen.items():
            self.cfg.set(name, value)

    def load(self) -> Front:
        return self._front


def connections(max_concurrency: int) -> int:
    """How many there may be: fewer than our descriptors, so that what runs has its own."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    others = _OWN_DESCRIPTORS + _DESCRIPTORS_EACH_SLOT * max_concurrency
    return min(_MOST_CONNECTIONS, max(descriptors // 2, descriptors - others))


def _after_fork(arbiter: Any, worker: Any) -> None:
    """A worker whose arbiter dies ends in good order: its clients get their 503."""
    del worker
    try:
        syscalls.die_with_parent(arbiter.pid, signal.SIGTERM)
    except ProcessLookupError:
        sys.exit(1)


def main() -> int:
    """`python -m gaoler.cli.web FD LINE LISTENING...`: what `gaoler serve` starts.

    FD yields, pickled by our parent, (settings, instance, layers).  LINE is the worker's end
    of the drain line.  LISTENING are the descriptors of the sockets on BIND and INTERNAL_BIND.
    """
    handed, line, *listening = map(int, sys.argv[1:])
    with os.fdopen(handed, "rb") as file:
        settings, instance, layers = pickle.load(file)
    sys.argv = ["gaoler-web"]  # gunicorn would read it
    logs.configure(settings.log_level)
    process.raise_descriptor_limit()
    web = Web(settings, instance, layers, line)
    Gunicorn(settings, web.front, listening).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
