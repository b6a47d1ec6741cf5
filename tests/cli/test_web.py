"""The web process's gunicorn over sockets that it was handed."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from gaoler.cli import children, listeners, web
from tests.hosting import LIMIT_S, eventually

# Gunicorn as the service configures it, over an application that says where a request came in.
SERVED = """
import json, os, sys
from gaoler.cli.web import Gunicorn
from gaoler.config.settings import Settings

async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    body = json.dumps([scope["server"], os.getppid()]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

listening = list(map(int, sys.argv[1:]))
sys.argv = ["gaoler-web"]
Gunicorn(Settings(), application, listening).run()
"""


def start(sockets: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    given = [sock.fileno() for sock in sockets]
    return subprocess.Popen(
        [sys.executable, "-c", SERVED, *map(str, given)], pass_fds=given, start_new_session=True
    )


def ask(address: tuple[str, int]) -> tuple[list[object], int]:
    """The scope's server, and the arbiter that answered."""
    connection = http.client.HTTPConnection(*address, timeout=LIMIT_S)
    try:
        connection.request("GET", "/")
        server, arbiter = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return server, arbiter


def end(arbiter: subprocess.Popen[bytes], number: int) -> None:
    """As `gaoler serve` does, a worker that outlives its arbiter is waited for."""
    arbiter.send_signal(number)
    arbiter.wait(LIMIT_S)
    eventually(lambda: not children.group_lives(arbiter.pid), "the worker ended")


@pytest.mark.parametrize("hosts", [("127.0.0.1", "127.0.0.1"), ("::1", "127.0.0.1")])
def test_a_request_is_told_by_its_port_and_the_ports_outlive_gunicorn(
    hosts: tuple[str, str],
) -> None:
    sockets = [listeners.listen("BIND", (host, 0)) for host in hosts]
    addresses = [sock.getsockname()[:2] for sock in sockets]
    try:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            arbiter = start(sockets)
            try:
                for address in addresses:
                    assert ask(address) == (list(address), arbiter.pid)
            finally:
                end(arbiter, number)
            # Nobody answers now, and yet a client is not turned away.
            socket.create_connection(addresses[0], timeout=LIMIT_S).close()
    finally:
        for sock in sockets:
            sock.close()


def test_there_are_fewer_connections_than_descriptors() -> None:
    """Pins: 100,000 were allowed to a process that may have 1024 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for limit in (64, 1_024, min(hard, 20_000)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            for slots in (1, 16, 4_096):
                assert limit // 2 <= web.connections(slots) < limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_web_process_takes_every_descriptor_that_it_may_have() -> None:
    code = """
import resource, sys
from gaoler.cli import children, web
from gaoler.config.settings import Settings
import pickle

class Gunicorn:
    def __init__(self, settings, front, listening):
        print(resource.getrlimit(resource.RLIMIT_NOFILE), listening)
    def run(self): pass

web.Gunicorn = Gunicorn
handed = children.filled_pipe(pickle.dumps((Settings(), "gaoler-x", {})))
sys.argv = ["web", str(handed), "6", "7", "8"]
web.main()
"""
    done = subprocess.run(
        [
            *("/bin/sh", "-c", 'ulimit -S -n 256 && ulimit -H -n 512 && exec "$@"', "sh"),
            *(sys.executable, "-c", code),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stdout == "(512, 512) [7, 8]\n"
