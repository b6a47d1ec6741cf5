"""What the tests of the client library share; they name this module as a pytest plugin."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.asking import Ask, Serve, ask_async, ask_sync
from tests.http.scripted import Script, Scripted

TLS = Path(__file__).parent / "tls"


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """One request by a client of its own."""
    asking: Ask = request.param
    return asking


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Scripted servers; closed when the test is over."""
    servers: list[Scripted] = []

    def start(*scripts: Script, **options: Any) -> Scripted:
        servers.append(Scripted(*scripts, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that clients trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return context
