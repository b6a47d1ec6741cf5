"""The listening sockets: bound before anything is started, kept through every restart.

`gaoler serve` holds them and never accepts on them.  Gunicorn inherits them, so that a port is
ours from the first moment to the last: while gunicorn is started again, clients wait.
"""

from __future__ import annotations

import errno
import socket
import time

from gaoler.cli import logs
from gaoler.cli.children import StartFailed
from gaoler.config.kinds import host_and_port

BACKLOG = 2048
# For the web process of a `gaoler serve` that was killed: it answers its last clients first.
PATIENCE_S = 10.0


def listen(name: str, address: tuple[str, int]) -> socket.socket:
    """A socket that listens and that no child inherits unasked.

    StartFailed, which names the setting, where the address cannot be had.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        where = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter where a name is none for DNS
        raise _refused(name, address, error) from None
    try:
        _bind(name, sock, where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _refused(name, address, error) from None
    return sock


def _bind(name: str, sock: socket.socket, where: object) -> None:
    """Bind; where the address is taken, wait for an earlier life of ours that is ending."""
    # Its connections may hold the port for longer; a socket that listens is refused all the same.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + PATIENCE_S
    noted = False
    while True:
        try:
            sock.bind(where)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        else:
            return
        if not noted:
            logs.note("address_in_use", setting=name, patience_s=PATIENCE_S)
            noted = True
        time.sleep(0.1)


def _refused(name: str, address: tuple[str, int], error: Exception) -> StartFailed:
    why = getattr(error, "strerror", None) or error
    return StartFailed(f"{name}={host_and_port(address)} cannot be listened on: {why}")
