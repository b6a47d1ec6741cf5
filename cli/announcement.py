"""What `gaoler serve` says once requests are answered: a line that can be pasted."""

from __future__ import annotations

import http.client

from gaoler.config.settings import Settings

STUB_WARNING = (
    "RUNNER_MODE=stub: nothing is run; every task is answered as if it had ended well, "
    'with "stub": true'
)


def is_healthy(settings: Settings) -> bool:
    """True where the public health answers 200."""
    connection = http.client.HTTPConnection(*_address(settings), timeout=2)
    try:
        connection.request("GET", "/api/v1/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def text(settings: Settings) -> str:
    """For a person at a terminal."""
    as_what = " as a stub, which runs nothing" if settings.runner_mode == "stub" else ""
    return f"gaoler is ready{as_what}.  Try it:\n\n{_sample(settings)}\n"


def _sample(settings: Settings) -> str:
    host, port = _address(settings)
    shown = f"[{host}]" if ":" in host else host
    key = ' -H "Authorization: Bearer $KEY"' if settings.api_keys else ""
    return (
        f"curl -s http://{shown}:{port}/api/v1/execute{key} -H 'Content-Type: application/json'"
        """ -d '{"steps": [{"cmd": "python3", "args": ["-c", "print(6 * 7)"]}]}'"""
    )


def _address(settings: Settings) -> tuple[str, int]:
    host, port = settings.bind
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
