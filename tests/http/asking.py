"""One request by either client, and what the tests of both ask and hear."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio

from gaoler.http.client import Answer, AsyncClient, Client, Request, Task
from tests.http.scripted import Scripted, http

HELLO = Request([Task("true")])
DONE = {"request_id": "r", "results": [{"outcome": "completed", "exit_code": 0}]}
OK = http("200 OK", json.dumps(DONE).encode())

# `ask(url, request, **options of the client)`
Ask = Callable[..., Answer]
Serve = Callable[..., Scripted]


def ask_sync(url: str, asked: Request = HELLO, **options: Any) -> Answer:
    with Client(url, **options) as client:
        return client.execute(asked)


def ask_async(url: str, asked: Request = HELLO, **options: Any) -> Answer:
    async def once() -> Answer:
        async with AsyncClient(url, **options) as client:
            return await client.execute(asked)

    if "sleep" in options:
        options["sleep"] = _as_coroutine(options["sleep"])
    return anyio.run(once)


def _as_coroutine(function: Callable[[float], object]) -> Callable[[float], Any]:
    async def call(value: float) -> None:
        function(value)

    return call


def problem(code: str, **more: object) -> dict[str, object]:
    """The body of a refusal."""
    return {"detail": f"because {code}", "code": code, "request_id": "r-1", **more}
